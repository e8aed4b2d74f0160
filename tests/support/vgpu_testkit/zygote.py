"""Processes that start in milliseconds: forked from one that has imported their modules, else as if they had been executed.

For tests that restart a service hundreds of times. What is forked runs the service's own `main()`; its PID, signals, exit code
and end are those of a process of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vgpu_testkit.zygote_main import MAX_MESSAGE_BYTES

_SUPPORT = Path(__file__).parents[1]
_START_S = 30.0  # the imports, on a busy machine
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a child is to run: `entry` is "module:function", its output is appended to `log`."""

    entry: str
    log: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class Zygote:
    """The process that forks, while its context is entered. For one thread."""

    def __init__(self, modules: Iterable[str], *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is added to this process's for the zygote itself, whose preloaded libraries its children have too."""
        self._modules = tuple(modules)
        self._environment = {**os.environ, "PYTHONPATH": str(_SUPPORT), **(environment or {})}
        self._codes: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_START_S)
        with theirs:
            argv = [sys.executable, "-m", "vgpu_testkit.zygote_main", str(theirs.fileno()), *self._modules]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=self._environment)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends the zygote and every child that still runs."""
        self._orders.close()
        code = self._process.wait(_END_S)
        assert code == 0 or error is not None, f"the zygote ends with {code}"

    def start(self, what: Start) -> ZygoteProcess:
        """A new child, which runs."""
        order = {
            "entry": what.entry,
            "log": str(what.log),
            "arguments": what.arguments,
            "environment": dict(what.environment),
        }
        self._orders.send(json.dumps(order).encode())
        while (pid := self._take().get("started")) is None:
            continue
        return ZygoteProcess(self, pid)

    def exit_code(self, pid: int) -> int:
        """How a child ended, negative for a signal; waits for the zygote's word of it."""
        while pid not in self._codes:
            self._take()
        return self._codes[pid]

    def _take(self) -> dict[str, Any]:
        received = self._orders.recv(MAX_MESSAGE_BYTES)
        assert received, "the zygote has ended"
        message: dict[str, Any] = json.loads(received)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
        return message


class ZygoteProcess:
    """One child. Its PID cannot become another's for whoever signals through this object."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    @property
    def is_running(self) -> bool:
        return self._pidfd is not None and not _has_ended(self._pidfd, 0.0)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal; one that has ended is left alone."""
        if self._pidfd is not None and self.is_running:
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, timeout_s: float) -> int:
        """The exit code, negative for a signal.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
        """
        if self._pidfd is not None:
            if not _has_ended(self._pidfd, timeout_s):
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            os.close(self._pidfd)
            self._pidfd = None
        return self._zygote.exit_code(self.pid)

    def kill(self) -> int:
        """SIGKILL, waits for the end, and the exit code."""
        self.send_signal(signal.SIGKILL)
        return self.wait(_END_S)


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    poll = select.poll()  # not select(): a descriptor may be above 1023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
