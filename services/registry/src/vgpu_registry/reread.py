"""Every ten seconds: the processes of each running container, recorded where they are others than its PID list says.

The library registers a process when it first touches the GPU; one that forks, or ends, is found here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from vgpu_registry import policy
from vgpu_registry.batches import PidsRecorder
from vgpu_registry.metrics import Metrics
from vgpu_registry.policy import Holding, PartitionRef
from vgpu_state.claims import Binding
from vgpu_state.errors import NotReady, StorageFailed, Superseded, VgpuError
from vgpu_state.ids import RuntimeId
from vgpu_state.pids import MAX_PIDS

_log = structlog.get_logger()

PERIOD_S = 10.0
_AWAY_IN_A_ROW = 3


class Tree(Protocol):
    async def holdings(self) -> tuple[Holding, ...]: ...
    async def recorded_pids(self, partition: PartitionRef) -> tuple[int, ...]: ...


class Kernel(Protocol):
    async def container_pids(self, binding: Binding) -> tuple[int, ...]: ...
    async def gpu_holders(self, pids: Sequence[int]) -> tuple[int, ...]: ...


class Turns(Protocol):
    def exclusive(self, container_id: RuntimeId) -> AbstractAsyncContextManager[None]: ...


class Reread:
    """The loop. `tree`, `kernel` and `recorder` are its own or shared; `turns` keeps it apart from the registrations."""

    def __init__(self, *, tree: Tree, kernel: Kernel, recorder: PidsRecorder, turns: Turns, metrics: Metrics) -> None:
        self._tree = tree
        self._kernel = kernel
        self._recorder = recorder
        self._turns = turns
        self._metrics = metrics
        self._failing: dict[PartitionRef, str] = {}
        self._cut: frozenset[PartitionRef] = frozenset()
        self._stalled: str | None = None

    async def serve(self) -> None:
        """Looks again every ten seconds until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look_again()

    async def look_again(self) -> None:
        """One round. What goes wrong is logged when it begins and when it ends, and tried again in the next.

        It ends early when dra-plugin is away for three containers in a row: so it is for all that are left.
        """
        try:
            holdings = [h for h in await self._tree.holdings() if h.is_live]
        except (NotReady, StorageFailed) as exc:  # the tree is away
            self._note_stall(str(exc))
            return
        live = {h.partition for h in holdings}
        self._failing = {p: error for p, error in self._failing.items() if p in live}
        self._cut &= live
        in_a_row = 0
        for holding in holdings:
            refusal = await self._look(holding)
            in_a_row = 0 if refusal is None else in_a_row + 1
            if refusal is not None and in_a_row == _AWAY_IN_A_ROW:
                self._note_stall(str(refusal))
                return
        self._note_stall(None)

    async def _look(self, holding: Holding) -> NotReady | None:
        """Why dra-plugin did not take the list now; None when it did, did not have to, or never will."""
        try:
            async with self._turns.exclusive(holding.binding.runtime_id):
                outcome = await self._record_changes(holding)
        except NotReady as exc:
            self._note_failure(holding, "not ready", exc)
            self._metrics.rereads.labels("unavailable").inc()
            return exc
        except Superseded:
            outcome = "superseded"  # a newer container took the place while this one was looked at
        except VgpuError as exc:
            outcome = "failed"
            self._note_failure(holding, str(exc), exc)
        except Exception as exc:  # noqa: BLE001 - what one container's processes can bring about must not stop the others' lists
            outcome = "failed"
            self._note_failure(holding, type(exc).__name__, exc)
        else:
            if self._failing.pop(holding.partition, None) is not None:
                _log.info("PID list recorded again", **_facts(holding))
        self._metrics.rereads.labels(outcome).inc()
        return None

    def _note_failure(self, holding: Holding, episode: str, error: Exception) -> None:
        """Logs the failure unless the container's last look ended in the same `episode`."""
        if self._failing.get(holding.partition) == episode:
            return
        self._failing[holding.partition] = episode
        unforeseen = None if isinstance(error, VgpuError) else error
        _log.warning("PID list not recorded", **_facts(holding), error=str(error), exc_info=unforeseen)

    async def _record_changes(self, holding: Holding) -> str:
        pids = await self._kernel.container_pids(holding.binding)
        pids = policy.plan_list(pids, gpu_holders=await self._gpu_holders(holding, pids))
        if not pids:
            return "empty"  # all have ended, or none of too many has a GPU open: the list stays as it is
        if pids == await self._tree.recorded_pids(holding.partition):
            return "same"
        await self._recorder.record_pids(holding.partition, runtime_id=holding.binding.runtime_id, pids=pids)
        _log.debug("PID list changed", **_facts(holding), processes=len(pids))
        return "changed"

    async def _gpu_holders(self, holding: Holding, pids: tuple[int, ...]) -> tuple[int, ...] | None:
        """Those that have a GPU open where the list is too long for the library, None where it is not."""
        if len(pids) <= MAX_PIDS:
            self._cut -= {holding.partition}
            return None
        holders = await self._kernel.gpu_holders(pids)
        self._metrics.lists_cut.inc()
        if holding.partition not in self._cut:
            self._cut |= {holding.partition}
            _log.warning(
                "PID list cut",
                **_facts(holding),
                processes=len(pids),
                gpu_holders=len(holders),
                listed=min(len(holders), MAX_PIDS),
            )
        return holders

    def _note_stall(self, reason: str | None) -> None:
        if reason is not None and self._stalled is None:
            _log.warning("PID lists are not kept up", reason=reason)
        if reason is None and self._stalled is not None:
            _log.info("PID lists are kept up again")
        self._stalled = reason


def _facts(holding: Holding) -> dict[str, str]:
    binding = holding.binding
    return {
        "container_id": binding.runtime_id,
        "claim_uid": holding.partition.claim_uid,
        "pod_uid": binding.pod.uid,
        "container": binding.container,
    }
