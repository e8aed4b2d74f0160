"""What this node allows: the operator's choices, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgpu_state.errors import MalformedInput
from vgpu_state.layout import Layout

_MIB = 1 << 20
_WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """How much of a GPU is given away in all, in percent: 100 is what it has, more is oversubscribed."""

    cores_percent: int = 100
    memory_percent: int = 100

    @property
    def share_cores_percent(self) -> int:
        """The most compute that one share has: oversubscribed or not, a GPU has no more than its whole."""
        return min(self.cores_percent, _WHOLE_PERCENT)

    def memory_bytes(self, gpu_memory_bytes: int) -> int:
        """What is given away of a GPU's memory, in whole MiB, as its device is offered."""
        return gpu_memory_bytes * self.memory_percent // _WHOLE_PERCENT // _MIB * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """What this node allows, and which host paths belong to us."""

    host: Layout
    library_version: str
    private_paths: tuple[str, ...]
    runtime_handlers: tuple[str, ...]
    allows_privileged: bool
    ratios: Ratios = Ratios()


def parse_runtime_handlers(text: str) -> tuple[str, ...]:
    """The patterns of --runtime-handlers; the empty one is the runtime's plain handler.

    Raises:
        MalformedInput: a pattern holds white space.
    """
    patterns = tuple(text.split(","))
    if any(re.search(r"\s", p) for p in patterns):
        raise MalformedInput(f"--runtime-handlers is {text!r}; expected patterns joined by commas, without spaces")
    return patterns
