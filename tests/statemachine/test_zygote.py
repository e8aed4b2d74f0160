"""What is forked by the zygote is a process as if it had been executed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit.zygote import Start, Zygote, ZygoteProcess

_ENTRY = "vgpu_testkit.zygote_sample:{}"
_WAIT_S = 10.0


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    with Zygote(["vgpu_testkit.zygote_sample"], environment={"OF_THE_ZYGOTE": "1"}) as one:
        yield one


def _start(zygote: Zygote, function: str, log: Path, *arguments: str) -> ZygoteProcess:
    return zygote.start(Start(entry=_ENTRY.format(function), log=log, arguments=arguments, environment={"GIVEN": "yes"}))


def _told(log: Path) -> dict[str, Any]:
    """The line that a child has written."""
    deadline = time.monotonic() + _WAIT_S
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "the child says nothing"
        time.sleep(0.001)
    told: dict[str, Any] = json.loads(log.read_text())
    return told


def test_child_has_a_session_of_its_own_and_only_what_it_was_given(zygote: Zygote, tmp_path: Path) -> None:
    child = _start(zygote, "describe", tmp_path / "log", "--flag=1")

    told = _told(tmp_path / "log")

    assert told["pid"] == told["session"] == child.pid != os.getpid()
    assert told["arguments"] == ["--flag=1"]
    assert told["environment"] == {"GIVEN": "yes"}
    assert told["descriptors"] == [0, 1, 2]
    assert told["child_handler"] == "SIG_DFL"


def test_exit_code_of_a_child_is_told(zygote: Zygote, tmp_path: Path) -> None:
    assert _start(zygote, "leave", tmp_path / "a", "3").wait(_WAIT_S) == 3
    assert _start(zygote, "describe", tmp_path / "b").wait(_WAIT_S) == 0


def test_exception_of_a_child_is_printed_and_is_exit_code_1(zygote: Zygote, tmp_path: Path) -> None:
    code = _start(zygote, "fail", tmp_path / "log").wait(_WAIT_S)

    assert code == 1
    assert (tmp_path / "log").read_text().endswith("RuntimeError: as asked\n")


def test_killed_child_is_gone_when_kill_returns(zygote: Zygote, tmp_path: Path) -> None:
    child = _start(zygote, "linger", tmp_path / "log")
    was_running = child.is_running

    assert child.kill() == -signal.SIGKILL
    assert was_running
    assert not child.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_children_end_with_the_zygote(tmp_path: Path) -> None:
    with Zygote(["vgpu_testkit.zygote_sample"]) as zygote:
        child = _start(zygote, "linger", tmp_path / "log")
        pidfd = os.pidfd_open(child.pid)

    deadline = time.monotonic() + _WAIT_S
    while _is_alive(pidfd):
        assert time.monotonic() < deadline, "the child outlives its zygote"
        time.sleep(0.001)
    os.close(pidfd)


def test_zygote_ends_well_when_nobody_has_asked_how_a_child_ended(tmp_path: Path) -> None:
    with Zygote(["vgpu_testkit.zygote_sample"]) as zygote:
        child = _start(zygote, "leave", tmp_path / "log", "0")
        while child.is_running:
            time.sleep(0.001)


def _is_alive(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    return True
