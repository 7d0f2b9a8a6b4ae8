"""kubernetes/check-cluster.sh, against a cluster that is a script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "kubernetes/check-cluster.sh"
STEPS = ["cluster", "install", "ready", "hosts", "tenant", "program", "resize", "drain", "remove"]

#: Answers as a cluster's where all is well. A file that is named as a command breaks that.
KUBECTL = r"""#!/usr/bin/env bash
cd "$(dirname "$0")"
echo "$(basename "$0") $*" >> calls
case "$*" in
  *" -- env "*) asked="gpupool ${*#* gpupool }" ;;
  *) asked="$(basename "$0") $*" ;;
esac
for broken in broken.*; do
  [ -e "$broken" ] && [[ $asked == *$(cat "$broken")* ]] && { echo "it broke"; exit 1; }
done
[ "$1" = apply ] && cat > "pod.$(wc -l < calls)"
case "$asked" in
  *"version --output yaml")
    printf 'clientVersion:\n  minor: "20"\n'
    printf 'serverVersion:\n  minor: "%s"\n' "$(cat minor)" ;;
  *"node list --state ready --json"*) echo '[{"name": "gpu-1"}]' ;;
  *"get pod program"*) echo Succeeded ;;
  *"get pod holder"*phase*) echo Running ;;
  *"get pod holder"*) cat lease ;;
  *"logs program"*) printf 'device 0: soft\nexample: 1 devices: OK\n' ;;
  *"lease show lease-7 --json"*) printf '{\n  "grants": [{"node": "gpu-1"}]\n}\n' ;;
  *"lease list"*) echo '[]' ;;
esac
"""

Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    for name in ("kubectl", "helm"):
        (tmp_path / name).write_text(KUBECTL)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "minor").write_text("34+")
    (tmp_path / "lease").write_text("lease-7")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "calls").write_text("")
        env = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "GPUPOOL_CHECK_PAUSE": "0.01",
            "GPUPOOL_CHECK_SECONDS": "2",
        }
        return subprocess.run(
            ["bash", SCRIPT, *options],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def steps(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """The result of each step, and what it saw."""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["step"]: (line["result"], line["saw"]) for line in lines}


def calls(folder: Path) -> str:
    return (folder / "calls").read_text()


def test_all_steps_hold(check: Check, tmp_path: Path) -> None:
    done = check("--json", "--soft", "--registry", "r.example/", "--tag", "1.2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = steps(done)
    assert list(found) == STEPS
    assert {result for result, _ in found.values()} == {"ok"}
    assert found["cluster"][1] == "Kubernetes 1.34"
    assert found["program"][1] == "example: 1 devices: OK"
    said = calls(tmp_path)
    assert "server.driver=soft" in said and "images.registry=r.example/" in said
    assert "lease resize lease-7 --memory 512MiB" in said
    assert said.index("node drain gpu-1") < said.index("node open gpu-1")
    assert "helm uninstall" in said and "delete namespace gpupool-check" in said
    (pod, _) = sorted(tmp_path.glob("pod.*"))
    assert "image: r.example/gpupool-client:1.2" in pod.read_text()
    assert "gpupool.io/memory: 256Mi" in pod.read_text()


def test_what_is_installed_is_left(check: Check, tmp_path: Path) -> None:
    done = check("--installed", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "check-cluster: OK"
    assert "helm" not in calls(tmp_path) and "delete namespace" not in calls(tmp_path)
    assert [line.split()[2] for line in done.stdout.splitlines()[:-1]] == [
        step for step in STEPS if step not in ("install", "remove")
    ]


@pytest.mark.parametrize(
    ("broken", "step"),
    [
        ("kubectl version", "cluster"),
        ("helm upgrade", "install"),
        ("rollout status deployment/gpupool-webhook", "ready"),
        ("node list", "hosts"),
        ("gpupool tenant create", "tenant"),
        ("kubectl apply", "program"),
        ("logs program", "program"),
        ("lease resize", "resize"),
        ("node drain", "drain"),
        ("node open", "drain"),
        ("delete namespace", "remove"),
        ("lease list", "remove"),
    ],
)
def test_the_first_step_that_fails_ends_it(
    check: Check, tmp_path: Path, broken: str, step: str
) -> None:
    (tmp_path / "broken.one").write_text(broken)
    done = check("--json")
    assert done.returncode == 1
    found = steps(done)
    assert list(found)[-1] == step and found[step][0] == "failed"
    assert {result for name, (result, _) in found.items() if name != step} <= {"ok"}
    assert found[step][1]


def test_a_cluster_that_is_too_old_is_refused(check: Check, tmp_path: Path) -> None:
    (tmp_path / "minor").write_text("29")
    done = check("--json")
    assert steps(done) == {"cluster": ("failed", "Kubernetes 1.29; gpupool needs 1.30")}


def test_a_pod_that_runs_without_a_lease_is_a_failure(check: Check, tmp_path: Path) -> None:
    (tmp_path / "lease").write_text("")
    assert steps(check("--json"))["resize"] == ("failed", "the pod runs without a lease")


@pytest.mark.parametrize("options", [["--unknown"], ["--tag"]])
def test_options_that_it_does_not_know(check: Check, tmp_path: Path, options: list[str]) -> None:
    done = check(*options)
    assert done.returncode != 0 and done.stdout == "" and options[0] in done.stderr
    assert calls(tmp_path) == ""


def test_it_says_how_it_is_used(check: Check) -> None:
    done = check("--help")
    assert done.returncode == 0
    assert "--soft" in done.stdout and "set -euo" not in done.stdout


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (apt-get install shellcheck)")
    done = subprocess.run([shellcheck, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
