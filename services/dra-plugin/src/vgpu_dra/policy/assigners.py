"""Which assigner a claim has, and what its containers are given with each share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vgpu_dra.cdi import Edits
from vgpu_dra.policy.assigner import Assignment, Granted, PartitionAssigner
from vgpu_dra.policy.eager import Eager
from vgpu_dra.policy.lazy import Lazy
from vgpu_dra.rules import NodeRules
from vgpu_state import container_abi, grants
from vgpu_state.claims import ClaimRecord, PodRef, PreparedVgpu
from vgpu_state.container_abi import CompatibilityMode, Mount
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ContainerName

LAZY: PartitionAssigner = Lazy()
EAGER: PartitionAssigner = Eager()


def assigner_for(assignment: Assignment) -> PartitionAssigner:
    """Of a claim that is about to be prepared."""
    return LAZY if assignment.reason is None else EAGER


def assigner_of(record: ClaimRecord) -> PartitionAssigner:
    """Of a recorded claim: it never changes."""
    return LAZY if record.eager is None else EAGER


def assigner_among(pod: PodRef, container: ContainerName, granted: Sequence[Granted]) -> PartitionAssigner:
    """Of all the claims that a container was given shares of.

    Raises:
        PreconditionFailed: the claims were prepared in different ways.
    """
    if len({g.record.mode for g in granted}) > 1:
        claims = ", ".join(f"{g.record.claim} ({g.record.mode})" for g in granted)
        raise PreconditionFailed(
            f"container {container} of pod {pod} has shares of claims that were prepared in different ways, with NRI and "
            f"without: {claims}; delete the pod, so that they are prepared anew"
        )
    if len({g.record.compatibility for g in granted}) > 1:
        claims = ", ".join(f"{g.record.claim} (mode {g.record.compatibility.value})" for g in granted)
        raise PreconditionFailed(
            f"container {container} of pod {pod} has shares of claims whose processes the library tells apart in different ways, "
            "since the feature gate DevicePluginClientMode or the node's cgroups changed between their Prepares: "
            f"{claims}; delete the pods of the older one, so that it is prepared anew"
        )
    return assigner_of(granted[0].record)


def device_edits(record: ClaimRecord, result: PreparedVgpu, *, rules: NodeRules) -> Edits:
    """What the CDI file gives with a share beside nodes and driver libraries: grant, library, and what the assigner says."""
    own = assigner_of(record).at_device(record, result, host=rules.host)
    uid = record.claim.uid
    grant = grants.encode_grant_env(key=result.grant.key, claim_uid=uid, request=result.request, nonce=result.grant.nonce)
    name, _, value = grant.partition("=")
    return Edits(
        mounts=(*_library_mounts(record, rules), *own.mounts),
        env=(
            (name, value),
            (container_abi.ENV_CLAIM_UID, uid),
            (container_abi.ENV_COMPATIBILITY_MODE, str(record.compatibility.value)),
            *own.env,
        ),
    )


def container_mounts(granted: Sequence[Granted], adjustment: Edits, *, rules: NodeRules) -> tuple[Mount, ...]:
    """Every mount of ours that a started container has: CDI's, with NRI's in place of those at the same destination."""
    given = [m for g in granted for result in g.results for m in device_edits(g.record, result, rules=rules).mounts]
    return tuple({m.destination: m for m in (*given, *adjustment.mounts)}.values())


def with_library_of_now(mounts: Sequence[Mount], *, rules: NodeRules) -> tuple[Mount, ...]:
    """A container's mounts as if it had been created with the library of now: it may have been with an earlier one of ours."""
    source, any_version = str(rules.host.library(rules.library_version)), str(rules.host.library(""))
    return tuple(
        replace(m, source=source) if m.destination == container_abi.LIBRARY and m.source.startswith(any_version) else m
        for m in mounts
    )


def _library_mounts(record: ClaimRecord, rules: NodeRules) -> tuple[Mount, ...]:
    host = rules.host
    mounts = (
        Mount(destination=container_abi.MANAGER_DIR, source=str(host.skeleton)),
        # Never noexec: the device-client in it must run.
        Mount(destination=container_abi.REGISTRY_DIR, source=str(host.registry)),
        Mount(destination=container_abi.LIBRARY, source=str(host.library(rules.library_version))),
        Mount(destination=container_abi.PRELOAD_LIST, source=str(host.preload_list)),
    )
    if record.compatibility is CompatibilityMode.CLIENT:
        return mounts
    return (*mounts, Mount(destination=container_abi.HOST_PROC_DIR, source="/proc"))
