"""Kubernetes quantities as whole numbers."""

from __future__ import annotations

import pytest

from vgpu_dra.quantity import parse_quantity
from vgpu_state.errors import MalformedInput


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("50", 50),
        ("+7", 7),
        ("8Gi", 8589934592),
        ("40960Mi", 42949672960),
        ("1Ki", 1024),
        ("1k", 1000),
        ("2M", 2000000),
        ("1.5Gi", 1610612736),
        (".5Ki", 512),
        ("5.", 5),
        ("1500m", 2),
        ("1m", 1),
        ("1n", 1),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", 2),
        ("7E", 7000000000000000000),
        ("9223372036854775807", 9223372036854775807),
    ],
)
def test_quantity_is_the_whole_number_rounded_up(text: str, value: int) -> None:
    assert parse_quantity(text, field="memory") == value


@pytest.mark.parametrize(
    "text", ["", "x", "Gi", "8 Gi", "8gi", "8GI", "0x10", "1e", "1e3Gi", "--1", "1,5", "8Gi\n", "\u0661", "NaN", "inf", "1" * 65]
)
def test_text_that_is_no_quantity_is_refused_naming_the_field(text: str) -> None:
    with pytest.raises(MalformedInput, match=r"^consumedCapacity\.memory is .*; expected a quantity such as 8Gi or 30$"):
        parse_quantity(text, field="consumedCapacity.memory")


@pytest.mark.parametrize("text", ["-1", "9223372036854775808", "8Ei", "9e999"])
def test_quantity_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(MalformedInput, match=r"expected 0 to 2\^63-1$"):
        parse_quantity(text, field="memory")
