"""What ends a connection to the runtime, as opposed to one call on it."""

from __future__ import annotations

from vgpu_state.errors import VgpuError


class ProtocolViolation(VgpuError):
    """Raised when bytes are not what the protocol allows. A reader that meets one has lost its place and is of no more use."""
