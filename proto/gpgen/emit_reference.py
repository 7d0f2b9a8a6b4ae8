"""The reference: what each function does here and what differs from a local driver."""

from __future__ import annotations

from .spec import Function, Spec


def _is_sentence(text: str) -> bool:
    return text[:1].isupper() and text.endswith((".", "!"))


def _check_function(f: Function) -> None:
    if f.mode != "refuse" and not f.is_message and not f.doc:
        raise f.fail("mode", 'say in a sentence what it does: doc = "…"')
    for key in ("doc", "differs"):
        text = getattr(f, key)
        if text and not _is_sentence(text):
            raise f.fail(key, f"'{key}' is a sentence: a capital letter first, a full stop last")
    if f.differs and not f.doc:
        raise f.fail("differs", "'differs' goes with a 'doc'")


def check(spec: Spec) -> None:
    """SpecError at the first implemented function that the reference could say nothing of."""
    for f in spec.functions:
        _check_function(f)
