"""What this node allows: the operator's choices, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgpu_state.errors import MalformedInput
from vgpu_state.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """How much of a GPU is given away in all, in percent: 100 is what it has, more is oversubscribed."""

    cores_percent: int = 100
    memory_percent: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """What this node allows, and which host paths belong to us."""

    host: Layout
    library_version: str
    private_paths: tuple[str, ...]
    runtime_handlers: tuple[str, ...]
    allows_privileged: bool


def parse_runtime_handlers(text: str) -> tuple[str, ...]:
    """The patterns of --runtime-handlers; the empty one is the runtime's plain handler.

    Raises:
        MalformedInput: a pattern holds white space.
    """
    patterns = tuple(text.split(","))
    if any(re.search(r"\s", p) for p in patterns):
        raise MalformedInput(f"--runtime-handlers is {text!r}; expected patterns joined by commas, without spaces")
    return patterns
