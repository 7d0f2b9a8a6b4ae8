"""The pages of docs/ as HTML in a folder, with pictures of the console beside its page.

`make docs` has the tests take the pictures first; none is committed, so none is of another release.
Needs markdown-it-py, which comes with rich.
"""

from __future__ import annotations

import argparse
import re
import shutil
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/gpupool/gpupool/blob/main"
#: The page that gets the pictures, and the sentence behind which they stand.
CONSOLE, BEHIND = "console", "## Pictures"
STYLE = (
    "body{max-width:60rem;margin:auto;padding:1rem;font:1rem/1.5 system-ui,sans-serif}"
    "table{border-collapse:collapse;display:block;overflow:auto}td,th{border:1px solid #999;"
    "padding:.3rem .6rem;vertical-align:top}pre{overflow:auto;background:#8882;padding:.6rem}"
    "img{max-width:100%;border:1px solid #999}:root{color-scheme:light dark}"
)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def target(link: str, page: Path) -> str:
    """Where a page's link goes here: to a page of ours, or to the repository."""
    path, _, anchor = link.partition("#")
    if not path or path.startswith("console/") or re.match(r"[a-z]+:", link):
        return link
    file = (page.parent / path).resolve()
    tail = f"#{anchor}" if anchor else ""
    if file.suffix == ".md" and file.parent == ROOT / "docs":
        return f"{file.stem}.html{tail}"
    if file == ROOT / "README.md":
        return f"index.html{tail}"
    if file.parent == ROOT / "docs" and file.is_file():
        return file.name
    return f"{REPOSITORY}/{file.relative_to(ROOT)}{tail}"


def render(page: Path, text: str) -> str:
    """A page as HTML, with anchors of its headings."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for before, token in zip(tokens, tokens[1:], strict=False):
        if before.type == "heading_open":
            before.attrSet("id", slug(token.content))
        for child in token.children or ():
            for name in ("href", "src"):
                if (link := child.attrGet(name)) is not None:
                    child.attrSet(name, target(str(link), page))
    body = markdown.renderer.render(tokens, markdown.options, {})
    title = next((t.content for t in tokens if t.type == "inline"), page.stem)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f'<p><a href="index.html">gpupool</a></p>{body}</html>\n'
    )


def with_pictures(text: str, pictures: list[Path]) -> str:
    """What the pages look like, wide and light, with links to the others."""
    by_name: dict[str, list[str]] = {}
    for path in pictures:
        by_name.setdefault(re.split("-(?:light|dark)", path.stem)[0], []).append(path.name)
    shown = [
        f"### {name}\n\n![{name}](console/{name}-light.png)\n\n"
        + " · ".join(f"[{file.removesuffix('.png')}](console/{file})" for file in files)
        for name, files in sorted(by_name.items())
    ]
    head, mark, rest = text.partition(BEHIND)
    assert mark, f"the page has no {BEHIND}"
    return "\n\n".join([head + mark + rest.rstrip(), *shown, ""])


def build(out: Path, pictures: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    (out / "console").mkdir(parents=True)
    taken = sorted(pictures.glob("*.png"))
    for path in taken:
        shutil.copy2(path, out / "console")
    for path in (ROOT / "docs").glob("*.svg"):
        shutil.copy2(path, out)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if page.stem == CONSOLE and taken:
            text = with_pictures(text, taken)
        name = "index" if page.stem == "README" else page.stem
        (out / f"{name}.html").write_text(render(page, text), encoding="utf-8")
    print(f"{out}/index.html, with {len(taken)} pictures of the console")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, required=True)
    given = parser.parse_args()
    build(given.out, given.pictures)


if __name__ == "__main__":
    main()
