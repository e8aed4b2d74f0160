"""What is known of the call in progress: who calls, by the kernel's word, and which operation it belongs to."""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from dataclasses import dataclass

OP_ID_METADATA = "op-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """SO_PEERCRED of the connection: the process that connected, in our PID namespace (0 = not visible there)."""

    pid: int
    uid: int
    gid: int


peer: ContextVar[Peer] = ContextVar("peer")
op_id: ContextVar[str] = ContextVar("op_id", default="")


def new_op_id() -> str:
    """8 hex digits that join the log lines of one operation across the processes."""
    return secrets.token_hex(4)
