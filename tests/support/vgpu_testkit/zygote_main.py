"""The zygote's own process: it imports modules once and forks a child for every start it is asked for.

Speaks with `zygote` over one socket, a JSON object per message: an order to start is answered by the child's PID, the end of a
child is told without being asked. Ends when its socket is closed, and with it all its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

MAX_MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def main() -> None:
    """`argv`: the descriptor of the socket, then the modules to import."""
    with contextlib.suppress(ConnectionError):  # closed over there, with the end of a child unread
        _serve()


def _serve() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it marks
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _reap(orders)
            if orders in ready:
                order = orders.recv(MAX_MESSAGE_BYTES)
                if not order:
                    return
                _tell(orders, {"started": _start(json.loads(order))})


def _start(order: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(order, parent)
    return pid


def _reap(orders: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(orders, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(orders: socket.socket, message: dict[str, int]) -> None:
    orders.send(json.dumps(message).encode())


def _become(order: dict[str, Any], parent: int) -> NoReturn:
    """Gives the child what an executed process has: a session, only stdio open, default signals, argv and environment."""
    code = 1
    try:
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(code)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _replace_descriptors(order["log"])
        os.environ.clear()
        os.environ.update(order["environment"])
        module, _, function = order["entry"].partition(":")
        sys.argv = [module, *order["arguments"]]
        random.seed()
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of the process: what an interpreter prints and answers with
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _replace_descriptors(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    main()
