"""How the partitions of a claim that is prepared now will be assigned: by NRI where it is there, or comes back in time."""

from __future__ import annotations

from collections.abc import Callable

from vgpu_dra.nri_lease import NriLease
from vgpu_dra.policy import mode
from vgpu_state.claims import EagerReason


class AssignmentMode:
    """One per process. `clock` gives seconds."""

    def __init__(self, lease: NriLease, *, is_nri_supported: bool, clock: Callable[[], float]) -> None:
        self._lease = lease
        self._is_nri_supported = is_nri_supported
        self._clock = clock
        self._serving_since_s = clock()

    def begin(self) -> None:
        """kubelet is served from now on, and nri-plugin can find us."""
        self._serving_since_s = self._clock()

    async def choose(self) -> EagerReason | None:
        """None where NRI assigns them; else why not, which may take as long as NRI is waited for."""
        patience_s = mode.patience_s(
            serving_for_s=self._clock() - self._serving_since_s, has_ever_lived=self._lease.has_ever_lived
        )
        is_alive = self._is_nri_supported and await self._lease.wait_alive(patience_s)
        return mode.eager_reason(
            is_nri_supported=self._is_nri_supported, is_alive=is_alive, has_ever_lived=self._lease.has_ever_lived
        )
