"""What a child of the zygote may be, for the zygote's own tests."""

from __future__ import annotations

import json
import os
import signal
import sys


def describe() -> None:
    """Prints what the process is, as one line."""
    print(
        json.dumps(
            {
                "pid": os.getpid(),
                "session": os.getsid(0),
                "arguments": sys.argv[1:],
                "environment": dict(os.environ),
                "descriptors": [fd for fd in range(256) if _is_open(fd)],
                "child_handler": signal.Handlers(signal.getsignal(signal.SIGCHLD)).name,  # type: ignore[arg-type]  # never a function here
            }
        )
    )


def leave() -> None:
    """Exits with the code that its argument is."""
    sys.exit(int(sys.argv[1]))


def fail() -> None:
    """Ends by an exception."""
    raise RuntimeError("as asked")


def linger() -> None:
    """Stays until it is killed."""
    while True:
        signal.pause()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
