"""What this node allows: the operator's choices, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgpu_state.claims import DeviceKind
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import shown
from vgpu_state.layout import Layout

_MIB = 1 << 20
_WHOLE_PERCENT = 100
_MAX_RATIO_PERCENT = 1000


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
class OfferRules:
    """What is offered of a GPU. Where the scheduler cannot see that shares and the whole exclude each other it is one of them.

    Without `has_shares` it is the whole everywhere.
    """

    ratios: Ratios = Ratios()
    kind_without_counters: DeviceKind = DeviceKind.VGPU
    has_shares: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """What this node allows, and which host paths belong to us. Without `has_shares` no claim gets a new share of a GPU.

    `compatibility` is for claims that are new: one that is prepared keeps what its record says.
    """

    host: Layout
    library_version: str
    private_paths: tuple[str, ...]
    runtime_handlers: tuple[str, ...]
    allows_privileged: bool
    ratios: Ratios = Ratios()
    has_shares: bool = True
    compatibility: CompatibilityMode = CompatibilityMode.CLIENT


def parse_ratio(text: str) -> int:
    """The percent of a --device-...-ratio.

    Raises:
        MalformedInput: it is no whole number of 1 to 1000. Ten times over is nobody's intention, and most likely a mistyped zero.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= _MAX_RATIO_PERCENT:
        raise MalformedInput(f"{shown(text)}; expected a whole number of percent from 1 to {_MAX_RATIO_PERCENT}")
    return int(text)


def parse_runtime_handlers(text: str) -> tuple[str, ...]:
    """The patterns of --runtime-handlers; the empty one is the runtime's plain handler.

    Raises:
        MalformedInput: a pattern holds white space.
    """
    patterns = tuple(text.split(","))
    if any(re.search(r"\s", p) for p in patterns):
        raise MalformedInput(f"--runtime-handlers is {text!r}; expected patterns joined by commas, without spaces")
    return patterns
