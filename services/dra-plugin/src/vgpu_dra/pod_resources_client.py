"""kubelet's podresources service, asked about one pod: its listing, or why there is none. It raises nothing and waits little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_dra.policy.listing import ListedDevice, Listing, Silence, Word
from vgpu_proto import podresources
from vgpu_state.claims import PodRef
from vgpu_state.errors import VgpuError

SOCKET: Final = "pod-resources/kubelet.sock"  # below kubelet's root directory

_ROUTE: Final = "/v1.PodResourcesLister/Get"
_BY_STATUS: Final = {
    Status.UNIMPLEMENTED: Word.UNIMPLEMENTED,
    Status.RESOURCE_EXHAUSTED: Word.BUSY,  # kubelet answers a hundred calls a second
    Status.DEADLINE_EXCEEDED: Word.TIMEOUT,
}

ANSWER_S = 0.2  # a fifth of what a hook has
# A hung kubelet delays the creation of one container in so many seconds; kubelet's restart takes about as long.
PAUSE_S = 10.0


class PodResourcesClient:
    """Asks kubelet. After an answer that did not come in time it is not asked for `PAUSE_S`."""

    def __init__(self, peer: PeerSocket, *, clock: Callable[[], float], answer_s: float = ANSWER_S) -> None:
        self._peer = peer
        self._answer_s = answer_s
        self._clock = clock
        self._paused_until = float("-inf")

    async def get(self, pod: PodRef) -> Listing | Silence:
        if self._clock() < self._paused_until:
            return Silence(word=Word.PAUSED, detail=f"kubelet did not answer less than {PAUSE_S:g} s ago")
        request = podresources.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
        try:
            answer = await self._peer.call(_ROUTE, request, podresources.GetPodResourcesResponse, deadline_s=self._answer_s)
        except VgpuError as exc:
            silence = Silence(word=_word(exc.__cause__), detail=str(exc))
        except DecodeError:
            silence = Silence(word=Word.ERROR, detail="kubelet's answer cannot be read")
        else:
            return _listing(answer)
        if silence.word is Word.TIMEOUT:
            self._paused_until = self._clock() + PAUSE_S
        return silence


def _word(cause: BaseException | None) -> Word:
    match cause:
        case TimeoutError():
            return Word.TIMEOUT
        # Go's plain errors have no status of their own.
        case GRPCError(status=Status.UNKNOWN, message=str(said)) if said.endswith("not found"):
            return Word.POD_UNKNOWN
        case GRPCError(status=status):
            return _BY_STATUS.get(status, Word.ERROR)
        case _:
            return Word.AWAY


def _listing(answer: podresources.GetPodResourcesResponse) -> Listing:
    return Listing(
        containers={
            container.name: frozenset(
                ListedDevice(
                    claim_namespace=claim.claim_namespace,
                    claim_name=claim.claim_name,
                    driver=device.driver_name,
                    pool=device.pool_name,
                    device=device.device_name,
                    share_id=device.share_id if device.HasField("share_id") else None,
                )
                for claim in container.dynamic_resources
                for device in claim.claim_resources
            )
            for container in answer.pod_resources.containers
        }
    )
