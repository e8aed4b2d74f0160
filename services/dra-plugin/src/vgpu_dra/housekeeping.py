"""What is done beside the calls: the trash emptied, lost CDI files and partitions made anew. Neither keeps a call waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from vgpu_dra.claim_state import PreparedClaims
from vgpu_dra.ledger import Ledger
from vgpu_dra.workers import Errand
from vgpu_state.claims import Binding, PodRef
from vgpu_state.errors import StorageFailed, VgpuError
from vgpu_state.ids import ClaimUid

_log = structlog.get_logger()

RESTORE_S = 60.0  # how long a claim's pods cannot start after someone removed its CDI file


class Trash(Protocol):
    """What was thrown away."""

    def empty_trash(self, *, is_inhabited: Callable[[Binding | PodRef], bool]) -> dict[str, StorageFailed]: ...


class Housekeeping:
    """The errands of this process. A fault that stays is logged once."""

    def __init__(
        self, *, trash: Trash, ledger: Ledger, claims: PreparedClaims, is_inhabited: Callable[[Binding | PodRef], bool]
    ) -> None:
        self._trash = trash
        self._ledger = ledger
        self._claims = claims
        self._is_inhabited = is_inhabited
        self._kept: dict[str, str] = {}
        self._unrestored: dict[ClaimUid, str] = {}
        self._emptying = Errand("trash", self._empty)
        self._restoring = Errand("specs", self._restore)

    def empty_trash_soon(self) -> None:
        self._emptying.ask()

    def restore_specs_soon(self) -> None:
        """A reboot empties the CDI directory; a driver update changes what is to be mounted."""
        self._restoring.ask()

    async def serve(self, *, every_s: float = RESTORE_S) -> None:
        """Restores what anyone else removed of the claims' files, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.restore_specs_soon()

    def _empty(self) -> None:
        try:
            failed = self._trash.empty_trash(is_inhabited=self._is_inhabited)
            faults = {name: str(exc) for name, exc in failed.items()}
        except StorageFailed as exc:  # the trash itself
            faults = {"": str(exc)}
        for name in [n for n, reason in faults.items() if self._kept.get(n) != reason]:
            _log.error("trash not emptied", entry=name, reason=faults[name])
        self._kept = faults

    def _restore(self) -> None:
        faults: dict[ClaimUid, str] = {}
        for uid in list(self._ledger.records):
            try:
                if self._claims.restore_spec(uid):
                    _log.info("claim files restored", claim_uid=uid)
            except VgpuError as exc:
                faults[uid] = str(exc)
        for uid in [u for u, reason in faults.items() if self._unrestored.get(u) != reason]:
            _log.error("claim files not restored", claim_uid=uid, reason=faults[uid])
        self._unrestored = faults
