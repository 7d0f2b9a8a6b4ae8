"""Fuzz what of Python reads bytes of others (decoders.py), by coverage: `make fuzz-python`.

    python fuzz_decoders.py [--only NAME,NAME] [--runs N] [--seconds N] [--folder FOLDER]
    python fuzz_decoders.py --replay NAME FILE …

Each target runs in a process of its own, for so long or so many inputs, and keeps in its folder
what reaches something new. Needs atheris (the dependency group fuzz).
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Whose branches are counted. Without the targets' own module atheris counts none.
PACKAGES = (
    *("gpupool_common", "gpupool_kubernetes", "gpupool_manager", "gpupool_server"),
    *("console_decoders", "decoders"),
)
#: The child that fuzzes one target: its name, then libFuzzer's own words.
ONE = "--one"
_RUNS = re.compile(r"^Done (\d+) runs|stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_EDGES = re.compile(r"cov: (\d+)")


def run_one(name: str, words: list[str]) -> None:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from decoders import TARGETS
    from gpupool_common import logs

    logs.configure("error", False)
    # Not while they are imported: of an editable install atheris then sees nothing.
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and _package(each) in PACKAGES:
            atheris.instrument_func(each)
    atheris.Setup([sys.argv[0], *words], TARGETS[name])
    atheris.Fuzz()


def _package(function: types.FunctionType) -> str:
    return (function.__module__ or "").split(".")[0]


def prepare(folder: Path, name: str) -> list[str]:
    """Write a target's seeds and words; the arguments with which it finds them."""
    from decoders import SEEDS, words

    corpus, seeds = folder / "corpus", folder / "seeds"
    for each in (corpus, seeds):
        each.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (seeds / str(number)).write_bytes(seed)
    lines = [f'"{word}"' for word in words() if word.isascii() and word.isprintable()]
    plain = [line for line in lines if '"' not in line[1:-1] and "\\" not in line]
    (folder / "words.dict").write_text("\n".join(plain) + "\n", encoding="ascii")
    return [
        f"-dict={folder / 'words.dict'}",
        f"-artifact_prefix={folder}/",
        str(corpus),
        str(seeds),
    ]


def fuzz(folder: Path, name: str, runs: int, seconds: int) -> bool:
    """One target, in its own process; whether nothing was found and all was done."""
    command = [sys.executable, __file__, ONE, name, "-timeout=60", "-rss_limit_mb=4096"]
    command += ["-print_final_stats=1", f"-runs={runs or -1}", f"-max_total_time={seconds}"]
    command += prepare(folder / name, name)
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    count = max((int(a or b) for a, b in _RUNS.findall(done.stderr)), default=0)
    edges = ([0, *map(int, _EDGES.findall(done.stderr))])[-1]
    good = done.returncode == 0 and count >= runs
    print(f"{name:10} {count:9} runs {edges:6} edges  {'ok' if good else 'FAILED'}", flush=True)
    if not good:
        print((done.stdout + done.stderr)[-3000:], flush=True)
    return good


def main() -> int:
    if sys.argv[1:2] == [ONE]:
        run_one(sys.argv[2], sys.argv[3:])
    from decoders import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz-python")
    parser.add_argument("--replay", nargs="+", metavar=("NAME", "FILE"))
    given = parser.parse_args()
    if given.replay:
        for file in given.replay[1:]:
            TARGETS[given.replay[0]](Path(file).read_bytes())
        return 0
    names = given.only.split(",") if given.only else list(TARGETS)
    folder = given.folder.absolute()
    return int(not all([fuzz(folder, name, given.runs, given.seconds) for name in names]))


if __name__ == "__main__":
    sys.exit(main())
