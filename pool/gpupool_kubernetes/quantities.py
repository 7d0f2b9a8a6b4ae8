"""Quantities as manifests write them: ``8Gi``, ``500m``, ``1e3``; read exactly, or refused.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from fractions import Fraction

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(
    r"\+?(?P<whole>[0-9]{0,19})(?:\.(?P<behind>[0-9]{0,18}))?"
    r"(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE](?P<exponent>[+-]?[0-9]{1,2}))?",
    re.ASCII,
)
#: As Kubernetes has it: no quantity is more than 2^63 - 1.
LARGEST = (1 << 63) - 1


def parse(value: object) -> Fraction:
    """What ``value`` says; ValueError if it is no quantity, or one that is too large."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is no quantity")
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text)
    whole, behind = (match["whole"], match["behind"] or "") if match else ("", "")
    if match is None or not whole + behind:
        raise ValueError("is no quantity")
    number = Fraction(int(whole + behind), 10 ** len(behind))
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    else:
        number *= Fraction(10) ** (int(match["exponent"] or 0) or _DECIMAL.get(suffix, 0))
    if number > LARGEST:
        raise ValueError("is larger than a quantity may be")
    return number


def whole(value: object) -> int:
    """A quantity that must be a whole number."""
    number = parse(value)
    if number.denominator != 1:
        raise ValueError("is not a whole number")
    return number.numerator
