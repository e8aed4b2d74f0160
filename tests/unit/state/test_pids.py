"""The PID list as the enforcement library reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_state import pids
from vgpu_state.errors import MalformedInput


def test_pids_are_ascending_decimal_lines_each_once() -> None:
    assert pids.encode_pids([300, 2, 4194304, 2]) == b"2\n300\n4194304\n"


@given(found=st.sets(st.integers(min_value=1, max_value=0x7FFFFFFF), min_size=1, max_size=1000))
def test_list_is_read_back_ascending(found: set[int]) -> None:
    assert pids.decode_pids(pids.encode_pids(found)) == tuple(sorted(found))


def test_thousand_pids_are_the_most() -> None:
    assert pids.encode_pids(range(1, 1001)).count(b"\n") == 1000


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "a PID list is empty; the library would stop the container's process"),
        (range(1, 1002), "a PID list has 1001 entries; the library reads at most 1000"),
        ([0, 5], "a PID list holds a number that is no PID"),
        ([-1], "a PID list holds a number that is no PID"),
        ([1 << 31], "a PID list holds a number that is no PID"),
    ],
)
def test_list_that_the_library_cannot_use_is_refused(found: list[int], words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        pids.encode_pids(found)

    assert str(refusal.value) == words


def test_what_is_no_pid_is_skipped_when_reading() -> None:
    assert pids.decode_pids(b"12\n\nx\n-3\n0\n345") == (12, 345)
