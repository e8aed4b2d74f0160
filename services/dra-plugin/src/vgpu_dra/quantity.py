"""Kubernetes quantities ("8Gi", "50", "1500m") → whole numbers. Source: apimachinery, resource.Quantity."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from vgpu_state.errors import MalformedInput
from vgpu_state.ids import shown

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?\Z", re.ASCII)
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{s: Decimal(1000) ** (i + 1) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{s: Decimal(1024) ** (i + 1) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_MAX = Decimal(2) ** 63 - 1


def parse_quantity(text: str, *, field: str) -> int:
    """The quantity rounded up to a whole number, as Kubernetes' own Value() does; between 0 and 2⁶³-1.

    Raises:
        MalformedInput: not a quantity, negative or too large; names `field`.
    """
    value = parse_exactly(text, field=field)
    if not 0 <= value <= _MAX:
        raise MalformedInput(f"{field} is {shown(text)}; expected 0 to 2^63-1")
    return int(value.to_integral_value(rounding=ROUND_CEILING))


def parse_exactly(text: str, *, field: str) -> Decimal:
    """The quantity as a number of any sign and size: equal quantities are equal, however they are written.

    Raises:
        MalformedInput: not a quantity; names `field`.
    """
    match = _FORM.match(text) if len(text) <= 64 else None
    if match is None:
        raise MalformedInput(f"{field} is {shown(text)}; expected a quantity such as 8Gi or 30")
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * _SUFFIX.get(suffix or "", Decimal(1))
