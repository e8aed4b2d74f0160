"""A claim prepared in either way, and containers that were given its devices, as values of dra-plugin."""

from __future__ import annotations

from dataclasses import replace

from vgpu_dra.pod_claims import ConsumerContainer, ConsumerPod
from vgpu_dra.policy import assigners
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_state.claims import ClaimRecord, ContainerKind, EagerReason, PodRef
from vgpu_state.container_abi import Mount
from vgpu_state.grants import ShownGrant
from vgpu_state.ids import ContainerName, RequestName, RuntimeId
from vgpu_testkit.dra_values import CONTROL_NODES, FACTS, POD, RULES, gpu_node

LAZY, EAGER = "lazy", "eager"
WAYS = (LAZY, EAGER)


def consumer(
    name: str,
    *references: str | None,
    kind: ContainerKind = ContainerKind.APP,
    position: int = 0,
    other_claims: tuple[str, ...] = (),
) -> ConsumerContainer:
    """A container of the pod that refers to the claim; None: to all of it."""
    return ConsumerContainer(
        name=ContainerName(name),
        kind=kind,
        position=position,
        references=tuple(None if r is None else RequestName(r) for r in references),
        other_claims=other_claims,
    )


def assigned(way: str, *containers: ConsumerContainer, pod: PodRef = POD) -> Assignment:
    """What Prepare is told of a node with NRI, or of one that has lost it, where the claim's pod has these containers."""
    if way == LAZY:
        return THROUGH_NRI
    return Assignment(reason=EagerReason.NRI_LOST, pods=(ConsumerPod(pod=pod, containers=containers),))


def shown(
    *records: ClaimRecord, name: str, runtime_id: RuntimeId, requests: tuple[str, ...] = (), pod: PodRef = POD
) -> ContainerFacts:
    """A container that was given the devices of these requests (none: all), as the runtime shows it after the CDI edits."""
    given = [(record, r) for record in records for r in record.vgpus if not requests or r.request in requests]
    edits = [assigners.device_edits(record, r, rules=RULES) for record, r in given]
    mounts: dict[str, Mount] = {m.destination: m for e in edits for m in e.mounts}
    return replace(
        FACTS,
        runtime_id=runtime_id,
        name=ContainerName(name),
        pod=pod,
        grants=tuple(
            ShownGrant(key=r.grant.key, claim_uid=record.claim.uid, request=r.request, nonce=r.grant.nonce) for record, r in given
        ),
        mounts=tuple(mounts.values()),
        devices=(*(gpu_node(int(r.device.removeprefix("vgpu-"))) for _, r in given), *CONTROL_NODES),
    )
