"""How many calls are held, how long, and how often they are looked at again."""

from __future__ import annotations

from vgpu_state.errors import VgpuError

HOLD_S = 12.0  # the client's own deadline
# What the answer needs to reach a client that would otherwise see only its own deadline and no reason.
ANSWER_S = 0.3
FIRST_POLL_S = 0.04
LONGEST_POLL_S = 0.25
AT_ONCE = 8  # calls of one container, or process, in the threads that read /proc
MAX_WAITING = 1024  # calls of one container that are held; the library makes one per process, and reads 1000


class QueueFull(VgpuError):
    """Raised when a container, or a process, has more calls waiting than are held for one."""
