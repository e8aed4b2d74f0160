"""A daemon's life: signals become a stop event, a start that cannot succeed becomes one sentence, the exit is hard."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import NoReturn

from vgpu_state.errors import VgpuError


class StartFailed(VgpuError):
    """Raised when a path, permission or kernel feature that the process needs is missing. A restart alone cannot help."""


class BadUsage(StartFailed):
    """Raised when the value of an option is not of its form."""


EXIT_OK = 0
EXIT_FAULT = 1
EXIT_USAGE = 2
_PR_SET_DUMPABLE = 4  # include/uapi/linux/prctl.h


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, prog: str) -> NoReturn:
    """Runs `main(stop)` to its end and exits. SIGTERM and SIGINT set `stop`; a second one ends the process at once.

    Nobody without CAP_SYS_PTRACE can look into the process meanwhile.

    The exit does not wait for threads: one may hang in a GPU driver's call for ever.
    """
    code = EXIT_OK
    _keep_others_out()
    try:
        try:
            asyncio.run(_until_done(main))
        except* VgpuError as group:
            # A start that failed in several places at once is still one sentence: the first says what to mend.
            failure = _first(group)
            print(f"{prog}: {failure}", file=sys.stderr)  # noqa: T201 - the one line a person reads
            code = EXIT_USAGE if isinstance(failure, BadUsage) else EXIT_FAULT
    except Exception:  # noqa: BLE001 - the root of the process: left to the interpreter it would wait for the threads
        traceback.print_exc()
        code = EXIT_FAULT
    leave(code)


def _keep_others_out() -> None:
    """Containers may be shown the host's /proc, and one that runs as root has the capabilities of a daemon that dropped all it
    does not need: the kernel would let it into /proc/<pid>/root, fd and environ of ours, and through them onto the node.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_done(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            leave(EXIT_FAULT)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await main(stop)
