"""What happens on a node, one step at a time, and what each step must do: the acts of kubelet, the runtime and a workload.

Each step acts on the real services and says what the claims tree may hold afterwards, which `Stage.finish` compares. A step
during which a service is killed says all that may have come of it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from grpclib.const import Status as Code
from grpclib.exceptions import GRPCError

from vgpu_proto import partitions
from vgpu_state import container_abi, grants, pids
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_testkit import node_claims, node_model
from vgpu_testkit.dra_calls import ConnectionBroke
from vgpu_testkit.light_node import KubeletWasRefused
from vgpu_testkit.light_runtime import LightContainer, MountMissing
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.node_model import Place, Status, Tracked
from vgpu_testkit.node_stage import Stage
from vgpu_testkit.nri_plugin_link import PluginRefused
from vgpu_testkit.oci import RefusedConfig
from vgpu_testkit.pods import ContainerSpec, ContainerState
from vgpu_testkit.trees import Stamp

_HELD = "one live container may hold a vGPU request"


class Steps:
    """Steps on one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._node = stage.node
        self._model = stage.model
        self._tally = stage.tally

    async def prepare(self, claim: Manifest, places: Sequence[Place] = ()) -> None:
        """Prepare; where it is the first, and without NRI, for the containers of these places, which are of one pod."""
        was_prepared = claim.uid in self._model.specs
        if not was_prepared:
            node_claims.reserve(claim, places, self._node.claims)
            self._stage.reserved[claim.uid] = places
        before = self._stage.stamps()
        try:
            await self._node.prepare(claim)
        except ConnectionBroke:
            assert self._stage.may_fail(self._node.dra)
            self._stage.doubtful = claim
            return
        way = " without NRI" if self._stage.is_without_nri and not was_prepared else ""
        self._tally["prepared again" if was_prepared else f"prepared{way}"] += 1
        self._stage.note_prepared(claim)
        if was_prepared:
            self._stage.check_unchanged(before)

    async def unprepare(self, claim: Manifest) -> None:
        running = self._model.running(claim)
        before = self._stage.stamps()
        try:
            await self._node.unprepare(claim)
        except ConnectionBroke:
            assert self._stage.may_fail(self._node.dra)
            self._stage.doubtful = claim
        except KubeletWasRefused as exc:
            self._tally["unprepare refused"] += 1
            _require(bool(running) and "still runs" in str(exc), f"refused to unprepare: {exc}")
            self._stage.check_unchanged(before)
        else:
            assert not running, f"claim {claim.name} was unprepared under a running container"
            self._tally["unprepared"] += claim.uid in self._model.specs
            self._stage.note_unprepared(claim)

    async def create(self, place: Place) -> Tracked | None:
        """The container, None where it was refused."""
        spec = self._spec(place)
        rivals = self._model.rivals(place)
        before = self._stage.stamps()
        try:
            container = await self._node.runtime.create(place.pod, spec)
        except RefusedConfig as exc:
            self._tally["create refused, not prepared"] += 1
            _require(place.claim.uid not in self._model.specs, f"prepared, and refused: {exc}")
            return None
        except PluginRefused as exc:
            self._check_create_refusal(exc, rivals=rivals, before=before)
            if self._stage.victim is self._node.dra:
                self._allow_replaced(place, rivals)
            return None
        self._model.attempts[place.partition] += 1
        one = Tracked(place=place, container=container, preparation=self._model.preparations[place.claim.uid])
        self._note_created(one, rivals=rivals)
        return one

    async def start(self, one: Tracked) -> None:
        try:
            await self._node.runtime.start(one.container)
        except MountMissing:
            self._tally["start without mounts"] += 1
            # With the poison, or with a partition that went with its claim, nothing ever runs.
            assert not one.is_adjusted or one.status is Status.ABSENT, "an adjusted container cannot start"
            return
        except PluginRefused as exc:
            is_of_before = one.preparation != self._model.preparations[one.place.claim.uid]
            _require(is_of_before or self._stage.may_fail(self._node.dra), f"the start was refused: {exc}")
            self._tally["start refused"] += 1
            self._stage.note_told(one, Status.STOPPED)
            return
        self._tally["started"] += 1
        assert one.is_adjusted, "a container that nri-plugin did not adjust has started"
        one.recorded = tuple(one.container.pids)
        if self._stage.victim is self._node.nri:
            self._model.allow(one, Status.STARTED)
        elif self._node.nri.is_up:
            assert self._node.dra.is_up, "a start that could not be recorded went on"
            self._model.expect(one, Status.STARTED)

    async def lose_processes(self, one: Tracked) -> None:
        """Its processes have ended, and the runtime has not noticed yet."""
        self._tally["processes lost"] += 1
        self._node.runtime.vanish(one.container)
        one.container.state = ContainerState.RUNNING

    async def end(self, one: Tracked) -> None:
        await self._node.runtime.end(one.container)
        self._stage.note_told(one, Status.STOPPED)

    async def remove(self, one: Tracked) -> None:
        await self._node.runtime.remove(one.container)
        self._stage.note_told(one, Status.ABSENT)

    async def register(self, one: Tracked) -> None:
        """A second process of the container registers, and ends."""
        pid = os.getpid()
        self._node.runtime.run_process(one.container, pid)
        after = tuple(sorted(one.container.pids))
        try:
            await self._node.register(pod_uid=one.place.pod.spec.uid, container=one.place.name)
        except (ConnectionBroke, GRPCError) as exc:
            _require(self._stage.may_fail(self._node.registry), f"the registration failed: {exc}")
            after = self._listed(one)
        else:
            self._tally["registered"] += 1
        one.recorded = after
        self._node.runtime.end_process(one.container, pid)

    async def register_as_another(self, one: Tracked) -> None:
        """A process of one container says that it is of another pod, then of another container."""
        pid = os.getpid()
        self._node.runtime.run_process(one.container, pid)
        before = self._stage.stamps()
        for pod_uid, container in ((str(uuid.uuid4()), one.place.name), (one.place.pod.spec.uid, "stranger")):
            refusal = await _refusal(self._node.register(pod_uid=pod_uid, container=container))
            assert refusal.status is Code.PERMISSION_DENIED, refusal
        self._stage.check_unchanged(before)
        self._node.runtime.end_process(one.container, pid)

    async def record_pids(self, one: Tracked) -> None:
        """What registry does when it finds another process in a cgroup."""
        pid = self._node.runtime.new_pid()
        self._node.runtime.run_process(one.container, pid)
        one.recorded = tuple(sorted(one.container.pids))
        assert await self._record(one, one.recorded), "a new list was said to be no change"
        self._node.runtime.end_process(one.container, pid)

    async def record_pids_late(self, one: Tracked) -> None:
        """registry has found processes of a container that does not hold its partition any more."""
        before = self._stage.stamps()
        refusal = await _refusal(self._record(one, (4711,)))
        assert refusal.status is Code.ABORTED, refusal
        self._stage.check_unchanged(before)

    async def ensure_late(self, one: Tracked) -> None:
        """EnsurePartition of a released container comes to dra-plugin after its release."""
        before = self._stage.stamps()
        self._tally["late ensure refused"] += 1
        refusal = await _refusal(self._node.calls.ensure(_shown(one.container), session=self._stage.session))
        assert refusal.status is Code.ABORTED, refusal
        self._stage.check_unchanged(before)

    def may_ensure_late(self, one: Tracked) -> bool:
        """Whether the dra-plugin that heard of the release still runs, and the claim is prepared as it was then."""
        uid = one.place.claim.uid
        is_as_it_was = uid in self._model.specs and one.preparation == self._model.preparations[uid]
        return self._node.dra.is_up and one.released_by == self._stage.incarnation and is_as_it_was

    def _check_create_refusal(self, exc: PluginRefused, *, rivals: list[Tracked], before: dict[str, Stamp]) -> None:
        if self._stage.victim is self._node.dra:
            return
        self._tally["create refused, held" if self._node.dra.is_up else "create refused, dra-plugin away"] += 1
        assert self._node.nri.is_up or self._stage.victim is self._node.nri
        if self._node.dra.is_up:
            assert any(one.is_holder for one in rivals), f"refused, and nobody holds its requests: {exc}"
            assert exc.code is Code.FAILED_PRECONDITION, exc
            assert _HELD in str(exc)
        else:
            assert exc.code is Code.UNAVAILABLE, exc
        self._stage.check_unchanged(before)

    def _note_created(self, one: Tracked, *, rivals: list[Tracked]) -> None:
        poison = self._node.layout.poison(ClaimUid(one.place.claim.uid))
        one.is_adjusted = one.container.source_of(container_abi.CONFIG_DIR) != str(poison)
        is_there_before = self._model.is_made_for(one.place)
        is_told = self._node.nri.is_up and self._stage.victim is not self._node.nri
        self._model.tracked.append(one)
        if is_told if is_there_before else one.is_adjusted:
            self._tally["created"] += 1
            self._tally["evicted"] += len(rivals)
            self._tally["taken over"] += len(self._model.predecessors(one.place))
            assert not [r for r in rivals if r.is_holder], "a request has two live holders"
            self._model.expect(one, Status.UNSTARTED)
            for predecessor in self._model.predecessors(one.place):
                self._model.expect(predecessor, Status.ABSENT)
            for rival in rivals:
                self._model.expect(rival, Status.STOPPED)
            return
        self._tally["created without nri-plugin"] += 1
        assert self._stage.may_fail(self._node.nri), "nri-plugin let a container pass without its partition"
        self._model.expect(one, Status.ABSENT)
        if self._stage.victim is self._node.nri:
            self._model.allow(one, Status.UNSTARTED)
            self._allow_replaced(one.place, rivals)

    def _allow_replaced(self, place: Place, rivals: list[Tracked]) -> None:
        """The container may have been made room for, before whoever did it died."""
        if any(one.is_holder for one in rivals):
            return
        for predecessor in self._model.predecessors(place):
            self._model.allow(predecessor, Status.ABSENT)
        for rival in rivals:
            self._model.allow(rival, Status.STOPPED)

    async def _record(self, one: Tracked, found: Iterable[int]) -> bool:
        partition = self._model.partition_of(one.place)
        return await self._node.calls.record_pids(one.place.claim.uid, partition, one.container.id, tuple(found))

    def _spec(self, place: Place) -> ContainerSpec:
        wanted = node_model.cdi_ids_by_request(self._model.last_specs[place.claim.uid])
        names = tuple(wanted[request] for request in sorted(place.requests))
        return ContainerSpec(name=place.name, attempt=self._model.attempts[place.partition], cdi_devices=names)

    def _listed(self, one: Tracked) -> tuple[int, ...]:
        file = self._node.layout.pids(ClaimUid(one.place.claim.uid), PartitionName(self._model.partition_of(one.place)))
        return pids.decode_pids(Path(file).read_bytes())


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise AssertionError(complaint)


async def _refusal(call: Coroutine[Any, Any, Any]) -> GRPCError:
    try:
        await call
    except GRPCError as exc:
        return exc
    raise AssertionError("not refused")


def _shown(container: LightContainer) -> partitions.Container:
    """A container as nri-plugin reports it."""
    config = container.config
    env = [entry.partition("=") for entry in config["process"]["env"]]
    spec = container.pod.spec
    return partitions.Container(
        runtime_id=container.id,
        name=container.spec.name,
        pod=partitions.Pod(uid=spec.uid, namespace=spec.namespace, name=spec.name),
        grants=[
            partitions.Grant(key=name.removeprefix(grants.ENV_PREFIX), value=value)
            for name, _, value in env
            if name.startswith(grants.ENV_PREFIX)
        ],
        devices=[
            partitions.Device(path=d["path"], type=d["type"], major=d["major"], minor=d["minor"])
            for d in config["linux"]["devices"]
        ],
    )
