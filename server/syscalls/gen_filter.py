"""Read the list of a worker's system calls, and write the C program that compiles its filters.

    python gen_filter.py LIST OUT.c

The program, run at build time, uses libseccomp and writes the filters' instructions as C
(compile.h); a worker needs no library for them. Bad lines are errors, as `file:line: …`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

DRIVERS = ("soft", "cuda")
ARGUMENTS = 6
CONDITIONS = 3

_CALL = re.compile(r"[a-z][a-z0-9_]*")
_VALUE = re.compile(r"0x[0-9a-f]{1,8}|0|[1-9][0-9]{0,9}|[A-Z][A-Z0-9_]+")
_ERRNO = re.compile(r"E[A-Z0-9]+")


class ListError(Exception):
    """A line that is not understood."""


@dataclass(frozen=True)
class Condition:
    """That bits of an argument are one of the values."""

    argument: int
    mask: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """One line: a call that is allowed if all conditions hold, or refused with an error."""

    line: int
    driver: str  # or empty: every driver
    call: str
    conditions: tuple[Condition, ...] = ()
    errno: str = ""


def _values(words: list[str]) -> tuple[str, ...]:
    if not words:
        raise ListError("a condition has no values")
    for word in words:
        if not _VALUE.fullmatch(word):
            raise ListError(f"{word!r} is neither a number nor a name of C")
    return tuple(words)


def _condition(text: str) -> Condition:
    words = text.split()
    if not words or not words[0].isdigit() or int(words[0]) >= ARGUMENTS:
        raise ListError(f"a condition begins with the number of an argument, 0 to 5: {text!r}")
    argument, rest = int(words[0]), words[1:]
    if rest[:1] == ["without"]:
        return Condition(argument, "|".join(_values(rest[1:])), ("0",))
    mask = "0xffffffff"
    if rest[:1] == ["&"]:
        (mask,) = _values(rest[1:2])
        rest = rest[2:]
    if rest[:1] != ["in"]:
        raise ListError(f"a condition is `in`, `& MASK in` or `without`: {text!r}")
    return Condition(argument, mask, _values(rest[1:]))


def _rule(number: int, driver: str, text: str) -> Rule:
    body, sign, why = text.partition("#")
    if not sign or not why.strip():
        raise ListError("the line does not say why (`# …`)")
    call, _, rest = body.strip().partition(" ")
    if not _CALL.fullmatch(call):
        raise ListError(f"{call!r} is no name of a system call")
    condition, equals, errno = (part.strip() for part in rest.partition("="))
    if equals and not _ERRNO.fullmatch(errno):
        raise ListError(f"{errno!r} is no name of an error")
    if not condition:
        return Rule(number, driver, call, (), errno)
    if not condition.startswith("if "):
        raise ListError(f"after {call} comes `if CONDITION`, `= ERRNO` or nothing")
    parts = [_condition(part) for part in re.split(r"\band\b", condition.removeprefix("if "))]
    if len({part.argument for part in parts}) < len(parts):
        raise ListError("two conditions on one argument")
    if len(parts) > CONDITIONS:
        raise ListError("too many conditions")
    return Rule(number, driver, call, tuple(parts), errno)


def _check_alone(rules: list[Rule], rule: Rule) -> None:
    """A call that is always allowed, or refused, has one line."""
    for other in rules:
        both = not other.driver or not rule.driver or other.driver == rule.driver
        if both and other.call == rule.call and not (other.conditions and rule.conditions):
            raise ListError(f"{rule.call} is in line {other.line} already")


def parse(text: str, name: str) -> list[Rule]:
    """The rules; ListError names the line."""
    rules: list[Rule] = []
    driver = ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith("["):
                driver = line.strip().removeprefix("[").removesuffix("]")
                if driver not in DRIVERS:
                    raise ListError(f"no driver {driver!r}; there are {', '.join(DRIVERS)}")
                continue
            rule = _rule(number, driver, line)
            _check_alone(rules, rule)
        except ListError as error:
            raise ListError(f"{name}:{number}: {error}") from None
        rules.append(rule)
    if not rules:
        raise ListError(f"{name}: there is nothing in it")
    return rules


def _comparisons(conditions: tuple[Condition, ...]) -> list[str]:
    """Every combination of the conditions' values, as libseccomp wants them."""
    combined = [""]
    for condition in conditions:
        combined = [
            f"{before}, SCMP_CMP({condition.argument}, SCMP_CMP_MASKED_EQ, "
            f"(uint32_t)({condition.mask}), (uint32_t)({value}))"
            for before in combined
            for value in condition.values
        ]
    return combined


def emit(rules: list[Rule], name: str) -> str:
    lines = ["/* Written by gen_filter.py. */", '#include "compile.h"', ""]
    for driver in DRIVERS:
        lines += [f"static void {driver}(scmp_filter_ctx filter)", "{"]
        for rule in rules:
            if rule.driver not in ("", driver):
                continue
            action = f"SCMP_ACT_ERRNO({rule.errno})" if rule.errno else "SCMP_ACT_ALLOW"
            for comparison in _comparisons(rule.conditions):
                count = comparison.count("SCMP_CMP(")
                lines.append(
                    f'    gp_compile_rule(filter, "{name}:{rule.line}", {action}, "{rule.call}", '
                    f"{count}{comparison});"
                )
        lines += ["}", ""]
    lines += ["int main(int argc, char **argv)", "{", "    gp_compile_open(argc, argv);"]
    lines += [f'    gp_compile("{driver}", {driver});' for driver in DRIVERS]
    lines += ["    return gp_compile_close();", "}", ""]
    return "\n".join(lines)


def main() -> int:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        rules = parse(source.read_text(encoding="utf-8"), source.name)
    except ListError as error:
        print(error, file=sys.stderr)
        return 1
    out.write_text(emit(rules, source.name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
