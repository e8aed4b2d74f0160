"""A service that is killed at chosen file-system calls and started again dozens of times: forked instead of executed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.daemons import Daemon
from vgpu_testkit.zygote import Start, Zygote, ZygoteProcess


class _Forked:
    """A forked child with the part of Popen that a Daemon and its tests use."""

    def __init__(self, process: ZygoteProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return None if self._process.is_running else self.wait()

    def wait(self, timeout: float = 30.0) -> int:
        if self.returncode is None:
            self.returncode = self._process.wait(timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


@dataclass(kw_only=True)
class CrashingDaemon(Daemon):
    """A Daemon whose starts are forks of `zygote`."""

    zygote: Zygote

    def start(self) -> None:
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        order = Start(
            entry=f"{self.module}.app:main",
            log=self.log,
            arguments=tuple(self.arguments),
            environment=_environment(self.environment),
        )
        forked: Any = _Forked(self.zygote.start(order))  # Any: no Popen, but used as one
        self.process = forked


@contextmanager
def crashing(daemon: Daemon, control: CrashControl, *, native: Path, roots: Iterable[Path]) -> Iterator[CrashingDaemon]:
    """The same service, not started, under `control` for what it does below `roots`; it is killed at the end."""
    with Zygote((f"{daemon.module}.app",), environment=control.environment(native, roots)) as zygote:
        forked = CrashingDaemon(
            name=daemon.name,
            module=daemon.module,
            debug_socket=daemon.debug_socket,
            log=daemon.log,
            arguments=daemon.arguments,
            environment=daemon.environment,
            zygote=zygote,
        )
        yield forked
        forked.kill()


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **added}
