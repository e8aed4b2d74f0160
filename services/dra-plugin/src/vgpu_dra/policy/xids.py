"""How much an XID (the number of a driver error) counts. Pure.

Source: NVIDIA device plugin, internal/rm/health.go: the list, the variables' grammar and precedence. There `disable` set to
everything ends the watching, so that `enable` has no effect; here `enable` always wins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

# The environment variables, which operators have set already for the device plugin.
ENABLE = "DP_ENABLE_HEALTHCHECKS"
DISABLE = "DP_DISABLE_HEALTHCHECKS"

# An application's own fault, which leaves the GPU well: graphics engine exception, MMU fault, reset channel, preemptive clean-up,
# video processor exception, context switch timeout.
BENIGN_XIDS = frozenset({13, 31, 43, 45, 68, 109})

_EVERYTHING = ("all", "xids")
_MAX_CODE = (1 << 64) - 1


class XidClass(Enum):
    """CRITICAL keeps new claims away, BENIGN is told only, DISABLED is only counted."""

    CRITICAL = "xid_critical"
    BENIGN = "xid_benign"
    DISABLED = "xid_disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidList:
    """Some XIDs, or all of them, and the words of the list that are none."""

    codes: frozenset[int] = frozenset()
    is_everything: bool = False
    malformed: tuple[str, ...] = ()

    def __contains__(self, code: int) -> bool:
        return self.is_everything or code in self.codes


def parse_xids(text: str) -> XidList:
    """A comma-separated list of numbers, in which `all` or `xids` stands for every one and makes the other words void."""
    words = [word.strip() for word in text.lower().split(",")]
    if any(word in _EVERYTHING for word in words):
        return XidList(is_everything=True)
    known = {word: int(word) for word in words if word.isascii() and word.isdigit()}
    return XidList(
        codes=frozenset(code for code in known.values() if code <= _MAX_CODE),
        malformed=tuple(word for word in words if word and known.get(word, _MAX_CODE + 1) > _MAX_CODE),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRules:
    """What the operator says of XIDs, over the built-in list: `enabled` wins over all else."""

    enabled: XidList = XidList()
    disabled: XidList = XidList()
    ignored: Collection[int] = frozenset()

    def judge(self, code: int) -> XidClass:
        if code in self.enabled:
            return XidClass.CRITICAL
        if code in self.disabled:
            return XidClass.DISABLED
        if code in BENIGN_XIDS or code in self.ignored:
            return XidClass.BENIGN
        return XidClass.CRITICAL

    @property
    def malformed(self) -> dict[str, tuple[str, ...]]:
        """The words that say nothing, by the variable that has them."""
        return {name: xids.malformed for name, xids in ((ENABLE, self.enabled), (DISABLE, self.disabled)) if xids.malformed}

    @property
    def looks_at_anything(self) -> bool:
        """Whether it matters that a GPU's events can be heard."""
        return self.looks_beyond_xids or self.enabled.is_everything or bool(self.enabled.codes)

    @property
    def looks_beyond_xids(self) -> bool:
        """Whether memory errors and the driver's own verdict count too: not where all health checks were switched off."""
        return not self.disabled.is_everything
