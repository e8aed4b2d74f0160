"""Does kubelet say of a container what the container's grants say? Pure: kubelet's answer comes as a value.

kubelet lists a container's claims whole, whichever requests the container uses, and no container that runs before the others and
ends. So its word settles which claim a container was given; among the requests of one claim, and for init containers, the grant
decides alone.

Source: kubelet pkg/kubelet/apis/podresources/server_v1.go, pkg/kubelet/cm/dra/manager.go (GetContainerClaimInfos).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from vgpu_dra import inventory
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.claims import ClaimRef, PreparedVgpu
from vgpu_state.errors import PermissionRefused


class Word(StrEnum):
    """What came of asking kubelet. All but CONFIRMED leave the grant to decide alone."""

    CONFIRMED = "confirmed"
    NOT_ASKED = "not_asked"  # it has its partition already, or gets none
    UNLISTED = "unlisted"  # its pod is known, this container is not among those that kubelet lists
    POD_UNKNOWN = "pod_unknown"
    AWAY = "away"  # no socket, or the connection broke
    TIMEOUT = "timeout"
    PAUSED = "paused"  # not asked: it has just not answered in time
    BUSY = "busy"
    UNIMPLEMENTED = "unimplemented"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """A device that kubelet gave a container. `share_id` None: kubelet does not say, as before 1.35, or there is none."""

    claim_namespace: str
    claim_name: str
    driver: str
    pool: str
    device: str
    share_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The devices of each container of one pod that kubelet lists, by the container's name."""

    containers: Mapping[str, frozenset[ListedDevice]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """kubelet has not said; `detail` is for the log."""

    word: Word
    detail: str


def judge_listing(facts: ContainerFacts, results: Iterable[PreparedVgpu], *, claim: ClaimRef, listing: Listing) -> Word:
    """CONFIRMED, or UNLISTED where kubelet does not list the container.

    Neither the pod's nor the claim's uid is in the listing. It needs none: no kubelet prepares a claim of this name with another
    uid while it has this one, and the grant has named the uid.

    Raises:
        PermissionRefused: kubelet lists the container without a device that it shows a grant of.
    """
    listed = listing.containers.get(facts.name)
    if listed is None:
        return Word.UNLISTED
    for result in results:
        if not any(_is_listed(result, claim, device) for device in listed):
            raise PermissionRefused(
                f"{facts} shows a grant of request {result.request} of claim {claim}, and kubelet does not list device "
                f"{result.pool}/{result.device}{_share(result)} of that claim for it: the grant is another container's"
            )
    return Word.CONFIRMED


def _is_listed(result: PreparedVgpu, claim: ClaimRef, device: ListedDevice) -> bool:
    return (
        device.driver == inventory.DRIVER
        and (device.claim_namespace, device.claim_name) == (claim.namespace, claim.name)
        and (device.pool, device.device) == (result.pool, result.device)
        and device.share_id in (None, result.share_id)
    )


def _share(result: PreparedVgpu) -> str:
    return f" (share {result.share_id})" if result.share_id else ""
