"""RecordStart of a container that was created while nri-plugin was away: bound if it can be, else refused by its own reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from vgpu_dra.confirmation import Confirmation
from vgpu_dra.event_documents import Reason
from vgpu_dra.metrics import Metrics
from vgpu_dra.partitions_service import PartitionsService
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.listing import Listing, Silence, Word
from vgpu_dra.recorder import NoRecorder
from vgpu_dra.workers import TreeWorkers
from vgpu_proto import partitions
from vgpu_state.claims import PodRef
from vgpu_state.errors import PermissionRefused, PreconditionFailed
from vgpu_state.ids import PodUid
from vgpu_testkit.dra_assigned import EAGER, LAZY, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID, POD, RUNTIME_ID, SESSION, TRAIN_PARTITION

LATER_POD = replace(POD, uid=PodUid("11111111-2222-4333-8444-555555555555"), name="two-workers-1")


class SilentKubelet:
    async def get(self, pod: PodRef) -> Listing | Silence:
        return Silence(word=Word.NOT_ASKED, detail="")


@dataclass
class Notebook(NoRecorder):
    told: list[tuple[PodRef, Reason, str]] = field(default_factory=list)

    def pod(self, pod: PodRef, reason: Reason, note: str) -> None:
        self.told.append((pod, reason, note))


@pytest.fixture
def service(node: DraTree) -> PartitionsService:
    node.synchronization.synchronize(SESSION, [])
    metrics = Metrics()
    confirmation = Confirmation(SilentKubelet(), node.ledger, metrics)
    service = PartitionsService(node.synchronization, confirmation, TreeWorkers(), metrics, after_removal=lambda: None)
    service.recorder = Notebook()
    return service


def told(service: PartitionsService) -> list[tuple[PodRef, Reason, str]]:
    assert isinstance(service.recorder, Notebook)
    return service.recorder.told


def given(node: DraTree, way: str, pod: PodRef = POD) -> ContainerFacts:
    """A running container `train` of the pod, with the claim's first request."""
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(way, consumer("train", "trainer")))
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",), pod=pod)
    node.run_container(RUNTIME_ID, pod, [41], mounts=facts.mounts)
    return facts


def started(facts: ContainerFacts) -> partitions.RecordStartRequest:
    return partitions.RecordStartRequest(
        runtime_id=facts.runtime_id,
        pid=41,
        session=SESSION,
        container=partitions.Container(
            runtime_id=facts.runtime_id,
            name=facts.name,
            pod=partitions.Pod(uid=facts.pod.uid, namespace=facts.pod.namespace, name=facts.pod.name),
            pid=41,
            grants=[partitions.Grant(key=g.key, value=f"{g.claim_uid}/{g.request}/{g.nonce}") for g in facts.grants],
            mounts=[
                partitions.Mount(destination=m.destination, source=m.source, type=m.type, options=m.options) for m in facts.mounts
            ],
            devices=[partitions.Device(path=d.path, type="c", major=d.major, minor=d.minor) for d in facts.devices],
        ),
    )


async def test_container_for_which_the_partition_was_made_is_bound_as_it_starts(
    node: DraTree, service: PartitionsService
) -> None:
    facts = given(node, EAGER)

    await service.record_start(started(facts))

    binding = node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name)
    assert binding is not None
    assert (binding.runtime_id, binding.is_started) == (RUNTIME_ID, True)
    assert told(service) == []


async def test_container_of_another_pod_is_refused_with_the_reason_and_its_pod_is_told(
    node: DraTree, service: PartitionsService
) -> None:
    facts = given(node, EAGER, pod=LATER_POD)

    with pytest.raises(PreconditionFailed) as refusal:
        await service.record_start(started(facts))

    assert str(refusal.value) == (
        "container train of pod research/two-workers-1 has request trainer of claim research/two-workers "
        f"({CLAIM_UID}), whose partition was made without NRI for train of pod research/two-workers-0; NRI on this node would "
        "lift this (feature gate NRISupport, nri-plugin connected to the runtime) for claims that are prepared then"
    )
    assert told(service) == [(LATER_POD, Reason.START_REFUSED, str(refusal.value))]


async def test_container_whose_partition_is_made_at_creation_has_none(node: DraTree, service: PartitionsService) -> None:
    facts = given(node, LAZY)

    with pytest.raises(PermissionRefused, match="has no partition: it was created while nri-plugin was away, or has been"):
        await service.record_start(started(facts))
