"""``gpupool-kubernetes pod``: runs beside a pod's own containers.

It brings the client libraries, and writes the token of the pod's lease into a file, anew before it
expires. The token is asked for with the pod's ServiceAccount token, which the kubelet renews.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Annotated

import httpx
import typer

from gpupool_common import json_text, paths
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.protocol import one_line
from gpupool_kubernetes import names
from gpupool_kubernetes.command import ended

#: A lease's token is good for an hour unless the manager has another 'lease_token_seconds'.
RENEW_SECONDS = 300.0
RETRY_SECONDS = 2.0
ANSWER_SECONDS = 20.0
_MOST_TOKEN = 65536


def copy_libraries(home: paths.Home, to: Path) -> None:
    """Our libraries as they are found in ``home``, in a folder ``lib`` of ``to``."""
    source, target = home.lib_path, to / "lib"
    skip = shutil.ignore_patterns("driver")  # the soft GPU is no client's
    try:
        shutil.copytree(source, target, symlinks=True, ignore=skip, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise GpupoolError(f"{target}: the libraries cannot be copied: {error}") from None


def write_preload(home: paths.Home, library_path: str, lease: Path) -> None:
    """What /etc/ld.so.preload is in the container that asks, by the setting ``libraries``."""
    wanted = (paths.CLIENT_LIBRARY, paths.NVML_LIBRARY, *paths.PRELOADED)
    there = [Path(name).name for name in wanted if (home.root / name).is_file()]
    _replace(lease / "ld.so.preload", "".join(f"{library_path}/{name}\n" for name in there))


def _replace(path: Path, text: str) -> None:
    """As a whole: who reads it meanwhile finds the old one or this."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(text, encoding="ascii")
        os.chmod(draft, 0o644)  # of the pod alone; its containers may have users of their own
        draft.replace(path)
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None


class TokenKeeper:
    """Asks for the lease's token, again and again."""

    def __init__(self, url: str, credential: Path, lease: Path, ca: str) -> None:
        try:
            trust: ssl.SSLContext | bool = (
                ssl.create_default_context(cadata=ca) if ca else ssl.create_default_context()
            )
        except ssl.SSLError as error:
            raise ConfigError(f"{names.CREDENTIAL_CA}: holds no certificate: {error}") from None
        self._url, self._credential, self._lease = url.rstrip("/"), credential, lease
        self._http = httpx.Client(
            verify=trust, timeout=ANSWER_SECONDS, follow_redirects=False, trust_env=False
        )

    def once(self) -> None:
        """Write the token as it is now; GpupoolError says why there is none."""
        try:
            shown = self._credential.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise GpupoolError(f"{self._credential}: cannot be read: {reason}") from None
        try:
            answer = self._http.post(
                f"{self._url}/v1/token", headers={"Authorization": f"Bearer {shown}"}
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = one_line(str(error)) or type(error).__name__
            raise GpupoolError(f"{self._url}: no answer: {why}") from None
        _replace(self._lease / "token", self._read(answer) + "\n")

    def _read(self, answer: httpx.Response) -> str:
        try:
            body = json_text.parse(answer.content[: 2 * _MOST_TOKEN])
        except ValueError:
            body = None
        found = body if isinstance(body, dict) else {}
        token = found.get("token")
        if answer.status_code != 200:
            detail = one_line(str(found.get("detail")))[:200]
            raise GpupoolError(f"{self._url}: answered {answer.status_code}: {detail}")
        if not isinstance(token, str) or not 0 < len(token) <= _MOST_TOKEN or not token.isascii():
            raise GpupoolError(f"{self._url}: answered without a token")
        return token

    def keep(self, stop: threading.Event, renew: float = RENEW_SECONDS) -> None:
        """Until ``stop``. Who has a token goes on with it while no other is to be had."""
        told = ""
        while not stop.is_set():
            try:
                self.once()
                told, wait = "", renew
            except GpupoolError as error:
                if str(error) != told:
                    told = str(error)
                    print(f"gpupool-kubernetes: {told}; asking again", file=sys.stderr)
                wait = RETRY_SECONDS
            stop.wait(wait)


def pod(
    url: Annotated[str, typer.Option(help="of the controller: https://HOST:PORT")],
    libraries: Annotated[
        Path | None, typer.Option(help="a folder that gets the client libraries")
    ] = None,
    library_path: Annotated[
        str, typer.Option(help="where the libraries are in the other containers")
    ] = f"{names.LIBRARIES_PATH}/lib",
    lease: Annotated[Path, typer.Option(help="a folder that gets the lease's token")] = Path(
        names.LEASE_PATH
    ),
    credential: Annotated[
        Path, typer.Option(help="the file with the pod's ServiceAccount token")
    ] = Path(names.CREDENTIAL_PATH) / "token",
) -> None:
    """Bring the client libraries into a pod, and keep the token of its lease fresh."""
    with ended():
        keeper = TokenKeeper(url, credential, lease, os.environ.get(names.CREDENTIAL_CA, ""))
        home = paths.find_home()
        if libraries is not None:
            copy_libraries(home, libraries)
        write_preload(home, library_path, lease)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        keeper.keep(stop)


def add_to(app: typer.Typer) -> None:
    app.command("pod")(pod)
