"""Ask a pool's manager over its REST API.

Every outcome but success is an exception of gpupool_common.errors with one line for the user.
No proxy is asked and no redirection followed: a token goes to the pool, or nowhere.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx

from gpupool.pool_address import CA, FINGERPRINT, PORT, TOKEN, Where
from gpupool_common import __version__, fingerprint, json_text
from gpupool_common.ask import ask_mechanism, is_unknown_host
from gpupool_common.errors import (
    ConfigError,
    GpupoolError,
    PoolAddressError,
    PoolAwayError,
    PoolRefusedError,
    ProtocolError,
)
from gpupool_common.protocol import one_line
from gpupool_common.tracing import HEADER

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
#: A page of a list has at most 1000 items; nothing that the manager answers is larger.
MAX_ANSWER = 64 << 20
MAX_EVENT = 1 << 20
PAGE = 1000
#: Of a list that goes on and on: more than any pool has of anything.
MAX_ITEMS = 1_000_000

#: The manager sends at least a comment so often (15 s) while nothing happens.
EVENT_SECONDS = 60.0

#: What a query is given: a list stands for a parameter that comes several times.
Params = Mapping[str, str | int | list[str] | None]


def at(*parts: str) -> str:
    """A path of the REST API, whatever its parts hold."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


@dataclass(frozen=True)
class Answer:
    """What the manager said yes with."""

    status: int
    body: Any
    etag: str | None

    def object(self, url: str) -> dict[str, Any]:
        if not isinstance(self.body, dict):
            raise ProtocolError(f"the pool at {url} answered no JSON object; another release?")
        return cast(dict[str, Any], self.body)


class PoolClient:
    """A connection to a pool's manager, to whichever leads if there are several; to be closed."""

    def __init__(self, where: Where) -> None:
        self._urls = where.url.split(",")
        #: The manager that is spoken to.
        self.url = self._urls[0]
        self._pinned = where.fingerprint is not None
        #: What requests belong to, for the manager's traces (gpupool_common/tracing.py).
        self.traceparent = ""
        self._http = httpx.Client(
            base_url=f"{self.url}/v1",
            headers={
                "Authorization": f"Bearer {where.token}",
                "Accept": "application/json, application/problem+json",
                "User-Agent": f"gpupool/{__version__}",
            },
            verify=_trust(where),
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> PoolClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Questions -----------------------------------------------------------------------------

    def get(self, path: str, params: Params | None = None, wait: float = 0.0) -> dict[str, Any]:
        """One object. ``wait``: for how long the manager was asked to think about it."""
        return self.ask("GET", path, params=params, wait=wait).object(self.url)

    def all(self, path: str, params: Params | None = None, most: int | None = None) -> list[Any]:
        """A whole list, page by page, or its first ``most`` items."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            left = PAGE if most is None else min(PAGE, most - len(found))
            page = self.get(path, {**(params or {}), "limit": left, "cursor": cursor})
            items, following = page.get("items"), page.get("next")
            if not isinstance(items, list) or not isinstance(following, str | None):
                raise ProtocolError(
                    f"the pool at {self.url} answered {path} without a list; another release?"
                )
            found += items
            if len(found) > MAX_ITEMS:
                raise ProtocolError(
                    f"the pool at {self.url}: the list {path} has more than {MAX_ITEMS} items"
                )
            if following is None or (most is not None and len(found) >= most):
                return found
            if not items or following == cursor:
                raise ProtocolError(f"the pool at {self.url}: the list {path} does not go on")
            cursor = following

    def do(
        self, method: str, path: str, body: Any = None, etag: str | None = None, key: str = ""
    ) -> dict[str, Any]:
        """A change; what the manager answered, ``{}`` if nothing."""
        headers = {"If-Match": etag} if etag else {}
        if key:
            headers["Idempotency-Key"] = key
        answer = self.ask(method, path, body=body, headers=headers)
        return {} if answer.body is None else answer.object(self.url)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Answer:
        """One request, one answer that is a yes."""
        given = (method, path, body, params, headers, wait)
        for _ in self._urls[1:]:
            try:
                return self._ask_one(*given)
            except (PoolAwayError, PoolAddressError) as error:
                if getattr(error, "unsure", False) and method != "GET":
                    raise  # whoever asked knows whether it may be said twice
                self._turn()
        return self._ask_one(*given)

    def _turn(self) -> None:
        """Speak to the next manager."""
        self.url = self._urls[(self._urls.index(self.url) + 1) % len(self._urls)]
        self._http.base_url = httpx.URL(f"{self.url}/v1")

    def _ask_one(
        self,
        method: str,
        path: str,
        body: Any,
        params: Params | None,
        headers: Mapping[str, str] | None,
        wait: float,
    ) -> Answer:
        limit = ANSWER_SECONDS + wait
        given = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            with self._http.stream(
                method,
                path,
                json=body,
                params=given,
                headers={**(headers or {}), **self._traced()},
                timeout=httpx.Timeout(limit, connect=CONNECT_SECONDS),
            ) as response:
                content = self._read(response, limit)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._away(error, limit) from None
        return self._judge(response, content)

    def events(self, kind: str | None, last: str | None = None, recent: int = 0) -> Iterator[Event]:
        """What happens, until the manager stops telling; first so many of what was."""
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        timeout = httpx.Timeout(EVENT_SECONDS, connect=CONNECT_SECONDS)
        params = {"kind": kind} if kind else {}
        if recent:
            params["recent"] = str(recent)
        try:
            with self._http.stream(
                "GET", "/events", params=params, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    self._judge(response, self._read(response, ANSWER_SECONDS))
                yield from _read_events(response.iter_bytes(), self.url)
        except (httpx.HTTPError, httpx.StreamError) as error:
            away = self._away(error, EVENT_SECONDS)
            self._turn()  # whoever asks on asks the next
            raise away from None
        except PoolAwayError:
            self._turn()
            raise

    def _traced(self) -> dict[str, str]:
        return {HEADER: self.traceparent} if self.traceparent else {}

    # Answers -------------------------------------------------------------------------------

    def _read(self, response: httpx.Response, limit: float) -> bytes:
        deadline = time.monotonic() + limit
        parts: list[bytes] = []
        size = 0
        for part in response.iter_bytes():
            size += len(part)
            if size > MAX_ANSWER:
                raise ProtocolError(f"the pool at {self.url} answered more than {MAX_ANSWER} bytes")
            if time.monotonic() > deadline:
                raise PoolAwayError(f"the pool at {self.url} was not done after {limit:g} s", True)
            parts.append(part)
        return b"".join(parts)

    def _judge(self, response: httpx.Response, content: bytes) -> Answer:
        status = response.status_code
        try:
            body = json_text.parse(content) if content else None
        except ValueError:
            body = ...
        if status >= 400 and isinstance(body, dict) and isinstance(body.get("detail"), str):
            raise self._refusal(status, body)
        if not 200 <= status < 300 or body is ...:
            what = f"{status} {one_line(response.reason_phrase)}".strip()
            raise ProtocolError(
                f"what listens at {self.url} answered {what} without a reason;"
                " is it a gpupool-manager, or something in front of one?"
            )
        return Answer(status, body, response.headers.get("ETag"))

    def _refusal(self, status: int, body: dict[str, Any]) -> GpupoolError:
        code = str(body.get("type", "")).rpartition(":")[2]
        detail = one_line(body["detail"])
        if code == "standby":
            return PoolAwayError(
                f"the manager at {self.url} stands by; none that leads was found: name the pool's"
                " other manager, too, with a comma between, or wait until this one leads"
            )
        if code == "over-quota":
            text = f"over the quota: {detail}"
        elif status == 401:
            text = (
                f"the pool at {self.url} refused the token: {detail};"
                f" set {TOKEN}, or name its file with --token-file"
            )
        elif status == 422:
            text = f"the pool at {self.url} cannot take this: {detail}"
        else:
            text = f"the pool at {self.url} said no: {detail}"
        return PoolRefusedError(status, code, text)

    def _away(self, error: Exception, limit: float) -> GpupoolError:
        raw = one_line(str(error)) or type(error).__name__
        reason = in_words(raw)
        wrong = self._wrong(error, raw, reason)
        if wrong is not None:
            return PoolAddressError(f"the pool at {self.url}: {wrong}")
        if isinstance(error, httpx.ConnectTimeout):
            why = f"no answer within {CONNECT_SECONDS:g} s; is the address right?"
        elif isinstance(error, httpx.TimeoutException):
            why = f"no answer within {limit:g} s; its log may say why"
        elif isinstance(error, httpx.ConnectError):
            why = f"{reason}; is gpupool-manager running there, and is the address right?"
        else:
            why = f"it hung up ({reason}); its log may say why"
        unsure = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        return PoolAwayError(f"the pool at {self.url}: {why}", unsure)

    def _wrong(self, error: Exception, raw: str, reason: str) -> str | None:
        """What must be changed before asking again can help; None: it can."""
        if isinstance(error, httpx.ConnectError):
            if "CERTIFICATE" in raw or "Hostname mismatch" in raw:
                return self._untrusted(reason)
            if any(word in raw for word in _NO_TLS):
                return "it does not speak TLS; write http:// there"
            if any(map(is_unknown_host, _causes(error))):
                return f"{reason}; is the host's name right?"
        hung_up = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        if hung_up and self._speaks_tls():
            return "it speaks TLS; write https:// there"
        if (hung_up or isinstance(error, httpx.ReadTimeout)) and self._speaks_zmtp():
            return (
                "servers and nodes are spoken to there (ZeroMQ); name the manager's REST API,"
                f" usually port {PORT}"
            )
        return None

    def _untrusted(self, reason: str) -> str:
        if self._pinned:
            return (
                f"its certificate is another than {FINGERPRINT} says ({reason}): somebody is in"
                " between, or it is new; ask its operator"
            )
        return (
            f"its certificate is not trusted ({reason}); name its CA with --ca or {CA}, or its"
            f" fingerprint with {FINGERPRINT}"
        )

    def _speaks_zmtp(self) -> bool:
        """Whether who listens greets as ZeroMQ does: a manager's port for nodes, or a server."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        return bool(ask_mechanism(f"tcp://{host}:{parts.port or PORT}", CONNECT_SECONDS))

    def _speaks_tls(self) -> bool:
        """Whether who hung up on a question in clear would have liked a secret one."""
        parts = urlsplit(self.url)
        if parts.scheme != "http":
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            where = (parts.hostname or "", parts.port or PORT)
            with socket.create_connection(where, CONNECT_SECONDS) as bare:
                context.wrap_socket(bare).close()
        except OSError:
            return False
        return True


#: What systems and OpenSSL put around their words: error numbers, and lines of their sources.
_NOISE = re.compile(r"\[Errno -?[0-9]+\] |\[SSL(: [A-Z0-9_]+)?\] | ?\(_ssl\.c:[0-9]+\)")


def in_words(reason: str) -> str:
    """The part of a system's error that is for people."""
    return _NOISE.sub("", reason).strip() or reason


#: What OpenSSL calls an answer that is not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and all that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _trust(where: Where) -> ssl.SSLContext:
    if where.url.startswith("http://"):  # so all of them
        if where.ca is not None:
            raise ConfigError(f"--ca (or {CA}) goes with a pool at https://, not {where.url}")
        if where.fingerprint is not None:
            raise ConfigError(f"{FINGERPRINT} goes with a pool at https://, not {where.url}")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of no use, and cheap to make
    if where.fingerprint is not None:  # the stricter of the two, where a CA is named as well
        return fingerprint.pinned_context(where.fingerprint)
    try:
        return ssl.create_default_context(cafile=None if where.ca is None else str(where.ca))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--ca {where.ca}: holds no certificate to trust: {reason}") from None


# Events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str
    kind: str
    data: dict[str, Any]


def _read_lines(parts: Iterator[bytes], url: str) -> Iterator[str]:
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_EVENT:
            raise ProtocolError(f"the pool at {url} sent an event of more than {MAX_EVENT} bytes")
        yield from (line.removesuffix(b"\r").decode(errors="replace") for line in lines)


def _read_events(parts: Iterator[bytes], url: str) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in _read_lines(parts, url):
        if line:
            name, _, value = line.partition(":")
            if name in ("id", "event", "data"):  # without a name it is a comment
                fields[name] = value.removeprefix(" ")
        elif fields:
            try:
                data = json_text.parse(fields.get("data", "{}"))
            except ValueError:
                data = None
            if not isinstance(data, dict):
                raise ProtocolError(f"the pool at {url} sent an event that is not JSON")
            yield Event(fields.get("id", ""), fields.get("event", "message"), data)
            fields = {}
