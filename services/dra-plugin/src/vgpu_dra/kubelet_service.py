"""kubelet's calls: plug-in registration and the DRA node service, v1 and v1beta1, which differ in one field.

Thin: every claim of a call is answered on its own, with its devices or with the sentence that says why not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

import structlog

from vgpu_dra import cdi, inventory, patience, wire
from vgpu_dra.allocation import Allocation, parse_allocation, reserved_pods
from vgpu_dra.claim_state import PreparedClaims
from vgpu_dra.event_documents import Reason
from vgpu_dra.gpus import GpusUnknown
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_dra.policy.occupancy import DeviceInUse
from vgpu_dra.recorder import NoRecorder, Recorder
from vgpu_dra.workers import TreeWorkers
from vgpu_proto import dra_v1, dra_v1beta1, pluginregistration
from vgpu_state import ids
from vgpu_state.claims import ClaimRecord, ClaimRef, PodRef, PreparedResult
from vgpu_state.errors import MalformedInput, NotReady, StorageFailed, Superseded, VgpuError

_log = structlog.get_logger()
_T = TypeVar("_T")

# Together below the 45 s that kubelet gives a call; after an error it asks again only a minute later or more.
FETCH_S = 30.0  # the API server is away, the API server is slow
TAKE_S = 10.0  # the GPUs are not known yet, or a pod's claim is prepared before that of a pod just deleted is unprepared

_MAX_TOLD_PODS = 8  # of the 256 that may share a claim, most of them on other nodes


class Lookup(Protocol):
    """What is to be known of a claim before its Prepare. NotReady is what may be otherwise in a moment."""

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]: ...
    async def assignment(self, doc: Mapping[str, Any], allocation: Allocation) -> Assignment: ...


class DraNode:
    """Prepares and unprepares the claims of a kubelet call, whatever the version of its messages."""

    def __init__(
        self,
        claims: PreparedClaims,
        lookup: Lookup,
        workers: TreeWorkers,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._lookup = lookup
        self._workers = workers
        self._metrics = metrics
        self._clock = clock
        self.after_removal: Callable[[], None] = lambda: None
        self.recorder: Recorder = NoRecorder()

    async def prepare_all(self, asked: list[Any]) -> dict[str, ClaimRecord | str]:
        """By claim uid: the prepared record, or why there is none. Any: a Claim message of either version."""
        return await self._each(asked, "prepare", self._prepare)

    async def unprepare_all(self, asked: list[Any]) -> dict[str, str]:
        """By claim uid: "" or why it is not unprepared."""
        return await self._each(asked, "unprepare", self._unprepare)

    async def _prepare(self, ref: ClaimRef) -> ClaimRecord:
        asked_at, found_by = self._clock(), asyncio.get_running_loop().time() + FETCH_S
        doc = await self._ask(lambda: self._lookup.fetch(ref), f"claim {ref}: the claim source did not answer", by_s=found_by)
        try:
            allocation = parse_allocation(doc, expected_uid=ref.uid)
            for remark in allocation.remarks:
                _log.warning(
                    "claim not understood in full", claim_uid=ref.uid, claim=f"{ref.namespace}/{ref.name}", reason=remark
                )
                self.recorder.claim(ref, Reason.POLICY_UNKNOWN, remark)
            assignment = THROUGH_NRI
            if not self._claims.is_recorded(ref.uid):
                late = f"claim {ref}: nri-plugin has no session, and the claim's pods were not looked up"
                assignment = await self._ask(lambda: self._lookup.assignment(doc, allocation), late, by_s=found_by)
            return await patience.held(
                lambda: self._workers.run(lambda: self._claims.prepare(allocation, asked_at_s=asked_at, assignment=assignment)),
                over=(GpusUnknown, DeviceInUse),
                for_s=TAKE_S,
            )
        except VgpuError as exc:
            if isinstance(exc, StorageFailed):
                self.after_removal()  # what was written of it is in the trash, and a full disk needs the room
            self._tell_refusal(ref, doc, exc)
            raise

    def _tell_refusal(self, ref: ClaimRef, doc: Mapping[str, Any], refusal: VgpuError) -> None:
        if isinstance(refusal, NotReady | Superseded):
            return  # kubelet asks again, and it may well succeed
        self.recorder.claim(ref, Reason.PREPARE_REFUSED, str(refusal))
        for pod in _told_pods(doc):
            self.recorder.pod(pod, Reason.PREPARE_REFUSED, str(refusal))

    async def _ask(self, ask: Callable[[], Awaitable[_T]], late: str, *, by_s: float) -> _T:
        """What is to be known of a claim, asked for again while nobody is there to answer, until `by_s` of the loop's clock.

        Raises:
            NotReady: it is `late` by then.
        """
        left_s = max(by_s - asyncio.get_running_loop().time(), 0.0)
        try:
            async with asyncio.timeout(left_s):
                return await patience.held(ask, over=(NotReady,), for_s=left_s)
        except TimeoutError as exc:
            raise NotReady(f"{late} within {FETCH_S:g} s") from exc

    async def _unprepare(self, ref: ClaimRef) -> str:
        if await self._workers.run(lambda: self._claims.unprepare(ref.uid)):
            self._metrics.events.labels("unprepare_forced").inc()
            note = f"claim {ref} was unprepared while a container of it still ran, after it had been waited for"
            self.recorder.claim(ref, Reason.UNPREPARED_IN_USE, note)
        self.after_removal()
        return ""

    async def _each(self, asked: list[Any], operation: str, act: Callable[[ClaimRef], Awaitable[Any]]) -> dict[str, Any]:
        messages = wire.claim_messages(asked)
        answers: dict[str, Any] = {}

        async def one(message: Any) -> None:
            uid = message.uid
            answers[uid] = await self._answer(message, operation, act)

        async with asyncio.TaskGroup() as group:
            # A uid that is named twice is one claim.
            for message in {m.uid: m for m in messages}.values():
                group.create_task(one(message), name=f"{operation} {message.uid}")
        return answers

    async def _answer(self, message: Any, operation: str, act: Callable[[ClaimRef], Awaitable[Any]]) -> Any:
        started = time.monotonic()
        about = {"claim_uid": message.uid}
        try:
            with self._metrics.timed(operation):
                ref = ClaimRef(
                    namespace=wire.text(message.namespace, "claim namespace"),
                    name=wire.text(message.name, "claim name"),
                    uid=ids.parse_claim_uid(message.uid),
                )
                about["claim"] = f"{ref.namespace}/{ref.name}"
                answer = await act(ref)
        except VgpuError as exc:
            _log.warning(f"{operation} refused", **about, outcome=type(exc).__name__, reason=str(exc), duration_ms=_ms(started))
            self._metrics.events.labels(f"{operation}_refused").inc()
            return str(exc)
        except Exception:  # noqa: BLE001 - the gRPC boundary, per claim
            # One claim's fault must not fail the others of the call; kubelet asks again.
            _log.exception(f"{operation} failed", **about)
            return f"internal error while trying to {operation} claim {message.uid}; see the log of dra-plugin"
        _log.info(operation, **about, duration_ms=_ms(started))
        return answer


class DraServiceV1(dra_v1.DraPluginBase):
    """k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin."""

    def __init__(self, node: DraNode) -> None:
        self._node = node

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1.NodePrepareResourcesRequest
    ) -> dra_v1.NodePrepareResourcesResponse:
        answers = await self._node.prepare_all(node_prepare_resources_request.claims)
        return dra_v1.NodePrepareResourcesResponse(
            claims={
                uid: dra_v1.NodePrepareResourceResponse(error=answer)
                if isinstance(answer, str)
                else dra_v1.NodePrepareResourceResponse(
                    devices=[dra_v1.Device(**_device(r), share_id=r.share_id or None) for r in answer.results]
                )
                for uid, answer in answers.items()
            }
        )

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: dra_v1.NodeUnprepareResourcesRequest
    ) -> dra_v1.NodeUnprepareResourcesResponse:
        answers = await self._node.unprepare_all(node_unprepare_resources_request.claims)
        return dra_v1.NodeUnprepareResourcesResponse(
            claims={uid: dra_v1.NodeUnprepareResourceResponse(error=error) for uid, error in answers.items()}
        )


class DraServiceV1Beta1(dra_v1beta1.DraPluginBase):
    """k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin, for kubelets before 1.34."""

    def __init__(self, node: DraNode) -> None:
        self._node = node

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1beta1.NodePrepareResourcesRequest
    ) -> dra_v1beta1.NodePrepareResourcesResponse:
        answers = await self._node.prepare_all(node_prepare_resources_request.claims)
        return dra_v1beta1.NodePrepareResourcesResponse(
            claims={
                uid: dra_v1beta1.NodePrepareResourceResponse(error=answer)
                if isinstance(answer, str)
                else dra_v1beta1.NodePrepareResourceResponse(devices=[dra_v1beta1.Device(**_device(r)) for r in answer.results])
                for uid, answer in answers.items()
            }
        )

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: dra_v1beta1.NodeUnprepareResourcesRequest
    ) -> dra_v1beta1.NodeUnprepareResourcesResponse:
        answers = await self._node.unprepare_all(node_unprepare_resources_request.claims)
        return dra_v1beta1.NodeUnprepareResourcesResponse(
            claims={uid: dra_v1beta1.NodeUnprepareResourceResponse(error=error) for uid, error in answers.items()}
        )


class RegistrationService(pluginregistration.RegistrationBase):
    """pluginregistration.Registration. Takes no lock: kubelet waits one second for GetInfo."""

    def __init__(self, *, endpoint: str, further_services: Collection[str] = (), clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._further_services = further_services
        self._clock = clock
        self.registered_at_s: float | None = None
        self.refusal: str = "kubelet has not registered this driver yet"

    async def get_info(self, info_request: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        return pluginregistration.PluginInfo(
            type="DRAPlugin",
            name=inventory.DRIVER,
            endpoint=self._endpoint,
            # Services, newest first: an old kubelet takes the first that it knows.
            supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin", *self._further_services],
        )

    async def notify_registration_status(
        self, registration_status: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        if registration_status.plugin_registered:
            self.registered_at_s = self._clock()
            self.refusal = ""
            _log.info("registered with kubelet", socket=self._endpoint)
        else:
            self.registered_at_s = None
            self.refusal = f"kubelet refused the registration: {registration_status.error}"
            _log.error("kubelet refused the registration", socket=self._endpoint, reason=registration_status.error)
        return pluginregistration.RegistrationStatusResponse()


def _told_pods(doc: Mapping[str, Any]) -> tuple[PodRef, ...]:
    try:
        return reserved_pods(doc)[:_MAX_TOLD_PODS]
    except MalformedInput:
        return ()  # whom to tell is no reason to fail


def _device(result: PreparedResult) -> dict[str, Any]:
    return {
        "request_names": [ids.main_request(result.request)],
        "pool_name": result.pool,
        "device_name": result.device,
        "cdi_device_ids": [cdi.device_id(result.cdi_device)],
    }


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 2)
