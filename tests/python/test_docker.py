"""The container files against the project: what a machine without a container engine can check."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from gpupool_manager.config import load_settings as load_manager
from gpupool_server.config import load_settings as load_server
from manager_rest import bearer
from pool_process import Manager
from test_manager_service import self_signed

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
IMAGES = ("client", "server", "manager", "kubernetes")

PINNED = re.compile(r"[a-z/-]+:[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z0-9]+)*@sha256:[0-9a-f]{64}")

Step = tuple[str, str]


class Dockerfile:
    """Its stages: a name, what it is from, and its instructions."""

    def __init__(self, text: str) -> None:
        self.defaults: dict[str, str] = {}
        self.stages: dict[str, tuple[str, list[Step]]] = {}
        current: list[Step] = []
        for word, rest in _instructions(text):
            if word == "ARG" and not self.stages:
                name, _, value = rest.partition("=")
                self.defaults[name] = value
            elif word == "FROM":
                source, _, name = rest.partition(" AS ")
                current = []
                self.stages[name] = (self._filled(source), current)
            else:
                current.append((word, rest))

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self.defaults[found[1]], text)

    def steps(self, name: str) -> list[Step]:
        """All instructions that make an image: its own, and those of what it is from."""
        source, own = self.stages[name]
        return [*(self.steps(source) if source in self.stages else []), *own]

    def last(self, name: str, word: str) -> str:
        return [rest for found, rest in self.steps(name) if found == word][-1]


def _instructions(text: str) -> Iterator[Step]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), " ".join(rest.split())


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return Dockerfile((DOCKER / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    found: dict[str, Any] = document["services"]
    return found


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


# Images --------------------------------------------------------------------------------


def test_the_images_are_there_and_from_pinned_ones(dockerfile: Dockerfile) -> None:
    assert set(IMAGES) <= set(dockerfile.stages)
    for source, _ in dockerfile.stages.values():
        assert source in dockerfile.stages or PINNED.fullmatch(source), source


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_special(dockerfile: Dockerfile, image: str) -> None:
    user = dockerfile.last(image, "USER")
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)
    makes = dockerfile.last("base", "RUN")
    uid, _, gid = user.partition(":")
    assert f"--uid {uid}" in makes and f"--gid {gid}" in makes


@pytest.mark.parametrize("image", IMAGES)
def test_no_compiler_is_in_an_image(dockerfile: Dockerfile, image: str) -> None:
    steps = dockerfile.steps(image)
    assert not [rest for word, rest in steps if word == "RUN" and ("apt" in rest or "pip" in rest)]
    copied = [rest for word, rest in steps if word == "COPY" and "--from=" in rest]
    assert len(copied) == 1 and copied[0].endswith("/opt/gpupool /opt/gpupool")


def _sources(dockerfile: Dockerfile) -> set[str]:
    return {
        source
        for _, steps in dockerfile.stages.values()
        for word, rest in steps
        if word == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    }


def test_what_is_copied_is_there_and_not_ignored(dockerfile: Dockerfile) -> None:
    sources = _sources(dockerfile)
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists(), source
    assert {source.rstrip("/") for source in sources} == allowed


def test_the_wheel_is_given_all_that_it_is_made_of(dockerfile: Dockerfile) -> None:
    sources = {source.rstrip("/") for source in _sources(dockerfile)}
    cmake = (ROOT / "CMakeLists.txt").read_text()
    parts = set(re.findall(r"^ *add_subdirectory\((\w+)\)", cmake, re.MULTILINE))
    assert parts == {"proto", "client_lib", "server"} and parts <= sources
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["scikit-build"]["wheel"]["packages"]
    assert {path.split("/")[0] for path in packages} <= sources
    assert {settings["project"]["readme"], *settings["project"]["license-files"]} <= sources


def test_what_copies_from_a_stage_names_one(dockerfile: Dockerfile) -> None:
    for _, steps in dockerfile.stages.values():
        for word, rest in steps:
            if word == "COPY" and "--from=" in rest:
                assert rest.partition("--from=")[2].split()[0] in dockerfile.stages


@pytest.mark.parametrize("image", IMAGES)
def test_an_entry_point_is_a_command_of_the_wheel(
    dockerfile: Dockerfile, project: dict[str, Any], image: str
) -> None:
    entry = yaml.safe_load(dockerfile.last(image, "ENTRYPOINT"))
    assert len(entry) == 1
    module, _, function = project["scripts"][entry[0]].partition(":")
    assert callable(getattr(import_module(module), function))
    done = subprocess.run(
        [sys.executable, "-m", module.partition(".")[0], "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (done.returncode, done.stdout) == (0, f"{entry[0]} {metadata.version('gpupool')}\n"), (
        done.stderr
    )


def test_the_images_have_the_versions_that_were_tested(dockerfile: Dockerfile) -> None:
    runs = [
        rest for _, steps in dockerfile.stages.values() for word, rest in steps if word == "RUN"
    ]
    installs = [part for rest in runs for part in rest.split("&&") if "pip install" in part]
    assert len(installs) == 11
    # Of pip itself by its own hashes, of all else by the list's, and our wheel needs no index.
    locked = ("-r pip.txt", "-c constraints.txt", "--no-deps /dist/*.whl")
    assert all(any(how in part for how in locked) for part in installs), installs


def test_a_pod_of_servers_waits_for_its_sessions(dockerfile: Dockerfile, folder: Path) -> None:
    copied = [rest for word, rest in dockerfile.steps("server") if word == "COPY"]
    assert "docker/wait_for_sessions.py /usr/local/share/gpupool/" in copied
    command, left = folder / "gpupool", folder / "left"
    command.write_text(f"""#!/bin/sh
test "$*" = "session list --json" || exit 2
read -r answer < {left} || exit 1
tail -n +2 {left} > {left}.new; mv {left}.new {left}
echo "$answer"
""")
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def wait(*answers: str) -> tuple[int, str, int]:
        left.write_text("".join(f"{answer}\n" for answer in answers))
        done = subprocess.run(
            [sys.executable, DOCKER / "wait_for_sessions.py", "--every", "0.01"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr, len(left.read_text().splitlines())

    two, one = '[{"session": "a"}, {"session": "b"}]', '[{"session": "a"}]'
    said = "waiting for 2 sessions\nwaiting for 1 sessions\n"
    assert wait(two, two, one, "[]", one) == (0, said, 1)
    # A server that is gone is not waited for, and one answer that is none ends nothing.
    assert wait("[]") == (0, "", 0)
    assert wait(one, "nonsense", "[]", one) == (0, "waiting for 1 sessions\n", 1)
    assert wait() == (0, "", 0)


# Compose -------------------------------------------------------------------------------


def test_the_services_are_there_with_pinned_images(
    services: dict[str, Any], dockerfile: Dockerfile
) -> None:
    assert set(services) == {"database", "manager", "setup", "server", "client"}
    for service in services.values():
        if (build := service.get("build")) is None:
            assert PINNED.fullmatch(service["image"])
        else:
            assert (DOCKER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
            assert service["image"] == f"gpupool-{build['target']}:${{VERSION:-local}}"
            assert build["args"] == {"VERSION": "${VERSION:-}"}
            assert build["target"] in dockerfile.stages


def test_what_runs_for_long_has_a_health_check(
    services: dict[str, Any], dockerfile: Dockerfile
) -> None:
    for name, service in services.items():
        if name in ("database", "manager", "server"):
            test = service["healthcheck"]["test"]
            assert test[0] == "CMD" and len(test) > 1
            if name in IMAGES:  # and without Compose it is the same
                image = dockerfile.last(name, "HEALTHCHECK").partition(" CMD ")[2]
                assert yaml.safe_load(image) == test[1:]
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]


def test_what_is_ours_is_locked_down(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" in service:
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_secrets_are_files_that_the_repository_does_not_have(services: dict[str, Any]) -> None:
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for name, secret in document["secrets"].items():
        path = (DOCKER / secret["file"]).relative_to(DOCKER)
        assert path.parent == Path("secrets") and name == path.name
    assert (DOCKER / "secrets" / ".gitignore").read_text().splitlines()[1:] == ["*", "!.gitignore"]
    for service in services.values():
        for value in service.get("environment", {}).values():
            assert "PASSWORD=" not in value and not value.startswith(("gpp_", "gpn_"))
        assert set(service.get("secrets", [])) <= set(document["secrets"])
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in document["volumes"]


def _flags(command: list[str]) -> dict[str, object]:
    flags: dict[str, object] = {}
    for word in command:
        name, given, value = word.removeprefix("--").partition("=")
        flags[name.replace("-", "_")] = value if given else True
    return flags


@pytest.mark.parametrize("file", ["compose.yaml", "compose.gpu.yaml"])
def test_the_flags_are_ones_that_the_programs_take(file: str) -> None:
    services = yaml.safe_load((DOCKER / file).read_text())["services"]
    server = load_server(None, _flags(services["server"]["command"]), {})
    assert server.curve and server.pool == "tcp://manager:7781"
    if "manager" in services:
        manager = load_manager(None, _flags(services["manager"]["command"]), {})
        assert manager.nodes_url == "tcp://0.0.0.0:7781"
        assert manager.address == ("0.0.0.0", 7780)


def test_real_gpus_change_the_driver_and_nothing_else(services: dict[str, Any]) -> None:
    override = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())["services"]
    assert list(override) == ["server"]
    soft, real = _flags(services["server"]["command"]), _flags(override["server"]["command"])
    assert soft | {"driver": "cuda"} == real | {"soft_gpus": "2"}
    (device,) = override["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_no_program_sees_the_token_with_which_a_server_joins(services: dict[str, Any]) -> None:
    """It lay in the volume of the client's own, and whoever read it made a node."""
    token = Path(str(_flags(services["server"]["command"])["join_token"]))
    mounts = {
        name: dict(volume.split(":")[:2] for volume in service.get("volumes", []))
        for name, service in services.items()
    }
    (volume,) = [name for name, path in mounts["server"].items() if path == str(token.parent)]
    having = {name for name, volumes in mounts.items() if volume in volumes}
    assert having == {"setup", "server"}
    admin = {name for name, volumes in mounts.items() if "manager" in volumes}
    assert admin == {"setup", "manager"}
    shared = set(mounts["client"]) & set(mounts["server"])
    assert not shared


def test_the_ports_are_the_programs_own(dockerfile: Dockerfile) -> None:
    manager = load_manager(None, {}, {})
    nodes = str(manager.nodes_url).rpartition(":")[2]
    assert dockerfile.last("manager", "EXPOSE") == f"{manager.address[1]} {nodes}"
    assert (
        dockerfile.last("server", "EXPOSE") == load_server(None, {}, {}).listen.rpartition(":")[2]
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_health_check_of_the_manager_is_right(
    dockerfile: Dockerfile, folder: Path, scheme: str
) -> None:
    check = [sys.executable, str(DOCKER / "health.py")]
    copied = [rest for word, rest in dockerfile.steps("manager") if word == "COPY"]
    assert "docker/health.py /usr/local/share/gpupool/" in copied
    manager = Manager(folder, *(_tls(folder) if scheme == "https" else ()))
    try:
        place = manager.start().removeprefix(f"{scheme}://")
        done = subprocess.run([*check, place], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        manager.end()
        done = subprocess.run([*check, place], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and "http://" in done.stderr and "https://" in done.stderr
    finally:
        manager.close()


def _tls(folder: Path) -> tuple[str, ...]:
    """Flags for https with a certificate that nobody knows."""
    certificate, key = map(str, self_signed(folder))
    address = "https://127.0.0.1:0"
    return "--listen", address, "--tls-certificate", certificate, "--tls-key", key


def test_setup_makes_tokens_once(services: dict[str, Any], folder: Path) -> None:
    entry = services["setup"]["entrypoint"]
    assert Path(entry[-1]).name == "setup.sh"
    commands = folder / "bin"
    commands.mkdir()
    gpupool = commands / "gpupool"
    gpupool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpupool "$@"\n')
    gpupool.chmod(0o755)
    manager = Manager(folder, "--listen", "https://127.0.0.1:0")
    try:
        env = {
            **manager.env,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "GPUPOOL_POOL": manager.start(),
            "GPUPOOL_POOL_FINGERPRINT": str(manager.state / "tls.fingerprint"),
            "ADMIN_TOKEN_FILE": str(manager.state / "admin.token"),
            "JOIN": str(folder),
            "NODE": "server",
            "TOKENS": str(folder),
        }
        found = []
        for _ in range(2):
            subprocess.run(["/bin/sh", DOCKER / "setup.sh"], env=env, check=True, timeout=60)
            tokens = [folder / name for name in ("join.token", "example.token")]
            assert [stat.S_IMODE(path.stat().st_mode) for path in tokens] == [0o600, 0o600]
            found.append([path.read_text() for path in tokens])
        assert found[0] == found[1]
        assert (folder / "pool.fingerprint").read_text().startswith("sha256:")
        trust = ssl.create_default_context(cafile=str(manager.state / "tls.crt"))
        url = f"{manager.url}/v1"
        with httpx.Client(base_url=url, trust_env=False, verify=trust) as client:
            token = found[0][1].strip()
            quota = client.get("/tenants/example/quota", headers=bearer(token)).json()
            listed = client.get("/tokens", headers=bearer(manager.admin)).json()["items"]
        assert (quota["gpus"], quota["memory_bytes"], quota["compute_permille"]) == (
            4,
            1 << 30,
            2000,
        )
        assert sorted(token["scope"] for token in listed) == ["admin", "node", "tenant"]
    finally:
        manager.close()
