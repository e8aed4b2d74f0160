"""Nothing new begins on a GPU that is lost; what is there already stays, and is answered as before. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_dra.inventory import Inventory
from vgpu_state.claims import PreparedResult
from vgpu_state.errors import NotReady


def check_reachable(results: Iterable[PreparedResult], inventory: Inventory, *, who: object) -> None:
    """Returns when NVML reached every GPU of the results at its last look.

    Raises:
        NotReady: naming the GPU. It may come back, with another index or another driver's libraries.
    """
    for result in results:
        if result.gpu_uuid in inventory.lost:
            raise NotReady(
                f"{who}: GPU {result.gpu_uuid} of request {result.request} is lost: NVML cannot reach it now; see the kernel's "
                "log for its last XID"
            )
