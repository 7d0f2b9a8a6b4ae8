"""A browser without a screen: keeps the console's cookie, and sends the forms that pages have."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from manager_rest import Rest

#: Elements that have no end tag.
VOID = {"meta", "link", "input", "br", "hr", "img"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    """One kind is enough: the console knows the API alone."""
    return f"sqlite:///{tmp_path / 'manager.db'}"


@dataclass
class Sheet:
    """One form of a page."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """What a page says, and how it is built; one that does not nest is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Sheet] = []
        self.words: list[str] = []
        #: Each element with its attributes.
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.elements.append((tag, named))
        if tag == "form":
            self.forms.append(Sheet(named["action"] or "", named["method"] or ""))
        elif tag in ("input", "select") and named.get("name"):
            self.forms[-1].fields[named["name"] or ""] = named.get("value") or ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> in {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def form(self, action: str) -> Sheet:
        """The only form that goes there."""
        (found,) = [form for form in self.forms if form.action == action]
        return found


class Visitor:
    """One browser."""

    def __init__(self, app: FastAPI, base: str = "http://pool") -> None:
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base)
        self._base = base

    async def sign_in(self, token: str) -> httpx.Response:
        answer = await self.client.post("/console/login", data={"token": token, "next": "/"})
        return answer

    async def get(self, path: str, status: int = 200) -> Page:
        answer = await self.client.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return Page(answer.text)

    async def send(self, form: Sheet, **fields: str) -> httpx.Response:
        """A form as a browser sends it, with what was filled in."""
        assert form.method == "post"
        headers = {"Origin": self._base, "Sec-Fetch-Site": "same-origin"}
        values = form.fields | fields
        return await self.client.post(form.action, data=values, headers=headers)

    async def do(self, form: Sheet, **fields: str) -> Page:
        """The page that follows a change."""
        answer = await self.send(form, **fields)
        assert answer.status_code == 303, answer.text
        return await self.get(answer.headers["location"])


async def visitor(rest: Rest, by: str | None = "admin") -> Visitor:
    """Who is signed in with this token; None: nobody."""
    found = Visitor(rest.app)
    if by is not None:
        answer = await found.sign_in(rest.tokens[by])
        assert answer.status_code == 303, answer.text
    return found
