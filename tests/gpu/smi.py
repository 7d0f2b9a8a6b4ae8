"""NVIDIA's own nvidia-smi with our libnvidia-ml, in each of its forms, held against itself.

    python tests/gpu/smi.py [--out DIR] [--only FORM ...]

A form is compared by its lines: those natively there must be there through the pool, with the
same values where these do not change (VARIES says which do). Where we say that something is not
known and the host says what it is, the field is listed; WITHHELD has those that are the host's
own by decision. The exit code is 1 if a form failed, or another field was not answered.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from harness import PoolServer, Result, device_name, native_environment, run_program  # noqa: E402

#: What is not known, as nvidia-smi says it.
NOT_KNOWN = re.compile(r"N/A|\[Not Supported\]|Unknown Error|Requested functionality", re.I)

#: Fields whose value is another one at another time, or for a tenant.
VARIES = re.compile(
    r"timestamp|time|clock|power|temp|util|memory|used|free|reserved|fan|pstate|performance|"
    r"process|throughput|energy|reasons|counter|link_gen|link_width|pcie|speed|attached|"
    r"persistence|violation|_util|index|pid|sm|enc|dec|rev",
    re.I,
)

#: Fields that the host does not tell a tenant (proto/coverage-nvml.md has each reason).
WITHHELD = re.compile(
    r"serial|fabric|platform|chassis|slot|tray|peer_type|host_id|gpu_guid|gsp_firmware_version|"
    r"c2c|bbx|checksum|repair|recovery|reset|drain|mig|vgpu|virtualization|confidential|protected|"
    r"dram_encryption|retired|sram_.*(parity|sec_?ded|threshold|sm|l2|mcu|pcie|other)|throughput|"
    r"t_?limit|smoothing|workload|module_power|memory_power|violation|counters|capabilities|"
    r"affinity|numa|supported_clocks|fru|deferred",
    re.I,
)

Fields = dict[str, str]


def query_words(say: Callable[[list[str]], Result]) -> list[str]:
    """Every field that this nvidia-smi can be asked for."""
    found = re.findall(r'^"([a-z0-9_.]+)"', say(["--help-query-gpu"]).stdout, re.M)
    return list(dict.fromkeys(found))


def of_query(result: Result, words: list[str]) -> Fields:
    values = result.stdout.strip().splitlines()[0].split(", ")
    if len(values) != len(words):
        raise ValueError(f"{len(values)} values for {len(words)} fields")
    return dict(zip(words, values, strict=True))


def of_xml(result: Result) -> Fields:
    """Each leaf of the first GPU by its path."""
    gpu = ElementTree.fromstring(result.stdout).find("gpu")
    if gpu is None:
        raise ValueError("there is no GPU")
    found: Fields = {}

    def walk(node: ElementTree.Element, path: str) -> None:
        for child in node:
            name = f"{path}/{child.tag}"
            if len(child):
                walk(child, name)
            else:
                found[name] = (child.text or "").strip()

    walk(gpu, "")
    return {name: text for name, text in found.items() if "/processes" not in name}


def of_lines(result: Result) -> Fields:
    """A table by its heads and the number of its lines: its values vary."""
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in result.stdout.splitlines()]
    heads = [line for line in lines if line.startswith("#") or "GPU0" in line.split("\t")[0:2]]
    return {"heads": " | ".join(heads[:2]), "lines": str(len(lines))}


FORMS: Mapping[str, list[str]] = {
    "list": ["-L"],
    "table": [],
    "xml": ["-q", "-x"],
    "topology": ["topo", "-m"],
    "peers": ["topo", "-p2p", "r"],
    "dmon": ["dmon", "-c", "2", "-s", "pucm"],
    "pmon": ["pmon", "-c", "1"],
    "query": [],
}


def read(form: str, result: Result, words: list[str]) -> Fields:
    if result.returncode != 0:
        raise ValueError(f"exit code {result.returncode}: {result.stdout[-200:]}")
    if form == "query":
        return of_query(result, words)
    if form == "xml":
        return of_xml(result)
    return {"list": result.stdout.strip()} if form == "list" else of_lines(result)


def compare(form: str, native: Fields, ours: Fields) -> dict[str, list[str]]:
    """What is missing, refused, withheld by decision, or another value."""
    row: dict[str, list[str]] = {"missing": [], "refused": [], "withheld": [], "differs": []}
    for name, value in native.items():
        got = ours.get(name)
        if got == value or (form == "table" and name == "lines"):
            continue
        if got is None:
            row["withheld" if WITHHELD.search(name) else "missing"].append(name)
        elif NOT_KNOWN.search(got) and not NOT_KNOWN.search(value):
            row["withheld" if WITHHELD.search(name) else "refused"].append(f"{name} ({value})")
        elif not VARIES.search(name) and not WITHHELD.search(name):
            row["differs"].append(f"{name}: {value!r} natively, {got!r} here")
    return row


def run_form(form: str, say: Mapping[str, Callable[[list[str]], Result]]) -> dict[str, Any]:
    words = query_words(say["native"]) if form == "query" else []
    arguments = list(FORMS[form])
    if words:
        arguments = [f"--query-gpu={','.join(words)}", "--format=csv,noheader,nounits", "-i", "0"]
    native = say["native"](arguments)
    if native.returncode != 0:
        return {"form": form, "verdict": f"skipped: fails natively: {native.stdout[-200:]}"}
    try:
        found = compare(form, read(form, native, words), read(form, say["ours"](arguments), words))
    except (ValueError, ElementTree.ParseError) as error:
        return {"form": form, "verdict": f"failed: {error}"}
    bad = [name for name in ("missing", "refused", "differs") if found[name]]
    return {"form": form, **found, "verdict": f"not the same: {', '.join(bad)}" if bad else "ok"}


def main() -> int:
    parser = argparse.ArgumentParser(description="nvidia-smi with our libnvidia-ml")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="+", choices=list(FORMS), default=list(FORMS))
    given = parser.parse_args()
    if not device_name():
        print("tests/gpu/smi.py: nvidia-smi finds no GPU here; run it on a machine with one")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    server = PoolServer("cuda")
    rows = []
    try:
        server.start()
        environments = {"native": native_environment({}), "ours": server.environment("")}
        for form in given.only:
            rows.append(run_form(form, {way: sayer(env) for way, env in environments.items()}))
            print(f"{form:9} {rows[-1]['verdict']}", flush=True)
            for kind in ("missing", "refused", "differs"):
                for line in rows[-1].get(kind, []):
                    print(f"  {kind}: {line}")
            (given.out / "smi.json").write_text(json.dumps(rows, indent=1))
    finally:
        server.close()
    good = sum(row["verdict"] == "ok" for row in rows)
    failed = sum(not row["verdict"].startswith(("ok", "skipped")) for row in rows)
    print(f"{good} passed, {failed} failed")
    return 1 if failed or not good else 0


def sayer(env: Mapping[str, str]) -> Callable[[list[str]], Result]:
    def say(arguments: list[str]) -> Result:
        try:
            return run_program(["nvidia-smi", *arguments], env)
        except (OSError, subprocess.SubprocessError) as error:
            return Result(127, "", str(error))

    return say


if __name__ == "__main__":
    sys.exit(main())
