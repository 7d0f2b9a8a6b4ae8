"""The renderer of the chart's tests: as Go's templates where it renders, and an error elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from go_template import Renderer, TemplateError
from helm_chart import FUNCTIONS


def rendered(text: str, **dot: Any) -> str:
    renderer = Renderer(FUNCTIONS)
    return renderer.run(renderer.learn(text), dot)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {{ .x }} b", "a 1 b"),
        ("a {{- .x -}} b", "a1b"),
        ("a\n  {{- /* nothing */ -}}\n b", "ab"),
        ("{{ if .none }}a{{ else if .x }}b{{ else }}c{{ end }}d", "bd"),
        ("{{ if .none }}a{{ else if .none }}b{{ else }}c{{ end }}d", "cd"),
        ("{{ if .x }}{{ if .none }}a{{ else }}b{{ end }}{{ else }}c{{ end }}d", "bd"),
        ("{{ range .list }}<{{ . }}{{ $.x }}>{{ end }}", "<a1><b1>"),
        ("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "p=1;q=2;"),
        ("{{ range .none }}a{{ else }}b{{ end }}", "b"),
        ("{{ with .map }}{{ .q }}{{ end }}{{ with .none }}x{{ end }}", "2"),
        ("{{ $a := 1 }}{{ if .x }}{{ $a = 2 }}{{ end }}{{ $a }}", "2"),
        ("{{ $a := 1 }}{{ if .x }}{{ $a := 2 }}{{ end }}{{ $a }}", "1"),
        ('{{ define "d" }}[{{ .y }}]{{ end }}{{ include "d" (dict "y" .x) | quote }}', '"[1]"'),
        ('{{ .none | default "z" }}{{ .x | default "z" }}', "z1"),
        ('{{ printf "%v-%s" .x (index .map "q") }}', "1-2"),
        ("{{ and .x .none }}{{ or .none .x }}{{ not .none }}", "1true"),
        ("{{ .map | toJson }}{{ .list | toYaml | nindent 2 }}", '{"p":1,"q":2}\n  - a\n  - b'),
        ("{{ `a b` }}{{ add 1 -3 }}", "a b-2"),
    ],
)
def test_what_it_renders(text: str, expected: str) -> None:
    dot = {"x": 1, "none": None, "list": ["a", "b"], "map": {"q": 2, "p": 1}}
    assert rendered(text, **dot) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{{ lookup .x }}",
        "{{ .x | b64enc }}",
        "{{ if .x }}",
        "{{ $a }}",
        "{{ $a = 1 }}",
        "{{ .none.deeper }}",
        "{{ .map }}",
        "{{ x }}",
        "{{ .x + 1 }}",
        '{{ kindIs "slice" .x }}',
    ],
)
def test_what_it_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        rendered(text, x=1, none=None, map={"a": 1})
