"""A node between two steps: its services killed and started, its rest awaited, its disk compared with the model.

Owns what a step may take for granted and what must hold after it; the steps are `node_steps`'.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from vgpu_state.claims import ClaimState
from vgpu_testkit import node_model, trees
from vgpu_testkit.light_node import LightNode, Service, until
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.node_model import Disk, Model, Place, Status, Tracked

_GATES, _WITHOUT_NRI = "VGPU_FEATURE_GATES", "NRISupport=false"


class Stage:
    """`victim` is the service that is killed during the step, None in all other steps. `tally` counts what has happened."""

    def __init__(self, node: LightNode, model: Model, tally: Counter[str]) -> None:
        self.node = node
        self.model = model
        self.tally = tally
        self.victim: Service | None = None
        self.doubtful: Manifest | None = None  # prepared or not: its call was cut off
        self.reserved: dict[str, Sequence[Place]] = {}  # by claim: for whom it is, where it is prepared without NRI
        self.incarnation = 0  # of dra-plugin, which forgets released ids when it ends
        self._session = 0
        self._is_settled = False  # nothing has come or gone since the services found each other
        self._is_restored = False  # dra-plugin has had the time to write what a reboot took away

    @property
    def session(self) -> int:
        """The NRI session that dra-plugin has been told of, 0 before the first."""
        return self._session

    @property
    def is_whole(self) -> bool:
        """Whether the runtime reaches dra-plugin."""
        return self.node.dra.is_up and self.node.nri.is_up

    @property
    def is_without_nri(self) -> bool:
        """Whether dra-plugin prepares what is new without NRI, as it was started last."""
        return self.node.dra.start_order.environment.get(_GATES) == _WITHOUT_NRI

    def may_fail(self, service: Service) -> bool:
        return not service.is_up or self.victim is service

    def stamps(self) -> dict[str, trees.Stamp]:
        """What every write would change."""
        return trees.stamps(Path(self.node.layout.claims), self.node.node.cdi_dir)

    def check_unchanged(self, before: dict[str, trees.Stamp]) -> None:
        """A refusal has changed nothing; not asked of a step in which a service dies, whose start may clean up."""
        if self.victim is None:
            after = self.stamps()
            changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            assert not changed, f"a refused call has changed {sorted(changed)}"

    def note_prepared(self, claim: Manifest) -> None:
        """The claim is prepared; if it was before, then as it was before."""
        spec = self.node.spec_file(claim).read_bytes()
        if claim.uid not in self.model.specs:
            self.model.preparations[claim.uid] += 1
            self.model.specs[claim.uid] = spec
        assert self.model.specs[claim.uid] == spec, "a repeated Prepare has given other devices or grants"
        record = node_model.look(self.node.layout, self.node.node.cdi_dir).records[claim.uid]
        assert record is not None
        if record.eager is not None:
            made = {(frozenset(map(str, p.requests)), str(p.sole_container)): str(p.name) for p in record.eager.partitions}
            wanted = {(place.requests, place.name): place for place in self.reserved[claim.uid]}
            assert set(made) == set(wanted), f"partitions for {set(made)}, reserved for {set(wanted)}"
            self.model.made[claim.uid] = {made[key]: place for key, place in wanted.items()}

    def note_unprepared(self, claim: Manifest) -> None:
        self.model.specs.pop(claim.uid, None)
        self.model.made.pop(claim.uid, None)
        for one in self.model.of_claim(claim):
            self.model.expect(one, Status.ABSENT)

    def note_told(self, one: Tracked, target: Status) -> None:
        """The runtime has told of a container's end, to whom it could."""
        if self.victim is self.node.nri:
            self.model.allow(one, _after(one.status, target))
        elif self.node.nri.is_up:
            one.owed = target  # delivered at once, or when dra-plugin is back

    async def during(self, step: Coroutine[Any, Any, Any], victim: Service, moment: int) -> None:
        """Does a step while `victim` is killed and started again.

        dra-plugin is killed before its `moment`-th file-system call, the others after half as many milliseconds.
        """
        self.victim = victim
        if victim is self.node.dra:
            self.node.crash.kill_before(moment)
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(step)
                if victim is self.node.dra:
                    while not task.done() and victim.is_up:
                        await asyncio.sleep(0.0005)
                    self.node.crash.disarm()
                else:
                    await asyncio.sleep(moment * 0.0005)
                self.tally[f"{victim.name} killed {'after' if task.done() else 'during'} a step"] += 1
                self.kill(victim)
                self.start(victim)
            await self.finish()
        finally:
            self.victim = None

    def kill(self, victim: Service) -> None:
        self._is_settled = False
        victim.kill()
        if victim is self.node.nri:
            for one in self.model.tracked:
                one.owed = None  # what it had not delivered is lost with it

    def start(self, service: Service) -> None:
        if service is self.node.dra:
            self.incarnation += 1
            self._session = 0
            self._is_restored = False
        self._is_settled = False
        service.start()

    async def drop_session(self) -> None:
        """The runtime closes its connection to nri-plugin, and listens anew."""
        self._is_settled = False
        await self.node.runtime.restart()

    async def crash(self, service: Service) -> None:
        """The service is killed at rest, and starts again."""
        self.kill(service)
        self.start(service)

    async def go_down(self, service: Service) -> None:
        """The service is killed at rest, and is away."""
        self.kill(service)

    async def come_back(self, service: Service) -> None:
        """A service that is away starts again."""
        self.start(service)

    async def switch_mode(self) -> None:
        """dra-plugin ends, and its next prepares what is new the other way; what is prepared stays as it is."""
        dra = self.node.dra
        gates = "" if self.is_without_nri else _WITHOUT_NRI
        self.kill(dra)
        dra.start_order = replace(dra.start_order, environment={**dra.start_order.environment, _GATES: gates})
        self.tally["switched"] += 1
        self.start(dra)

    async def crash_in_recovery(self, moment: int) -> None:
        """dra-plugin ends, and again before the `moment`-th file-system call of its next start; then it starts."""
        dra = self.node.dra
        self.kill(dra)
        self.node.crash.kill_before(moment)
        self.start(dra)
        while dra.is_up and not await dra.is_reachable():
            await asyncio.sleep(0.0005)
        self.node.crash.disarm()
        self.kill(dra)
        self.start(dra)

    async def reboot(self) -> None:
        """The machine goes down with all that runs; CDI folder and cgroups are empty after it, the claims tree is not."""
        for service in self.node.services:
            self.kill(service)
        for container in self.node.runtime.containers:
            self.node.runtime.vanish(container)
            container.is_stop_told = True
        for spec in self.node.node.cdi_dir.iterdir():
            spec.unlink()
        self.node.host.boot(str(uuid.uuid4()))
        for one in self.model.tracked:
            self.model.expect(one, Status.ABSENT)
        for service in self.node.services:
            self.start(service)

    async def finish(self) -> None:
        """The node comes to rest and is what the model says.

        Raises:
            AssertionError: it is not.
        """
        if not self._is_settled:
            await self.node.settle()
        if self.is_whole:
            await self._note_what_was_heard()
        self._is_settled = True
        if self.node.dra.is_up:
            await until(self._is_trash_empty, "the trash is not emptied")
            if not self._is_restored:
                await until(self._are_specs_there, "not every prepared claim has its CDI file")
                self._is_restored = True
        disk = node_model.look(self.node.layout, self.node.node.cdi_dir)
        if self.doubtful is not None and self.node.dra.is_up:
            self._resolve(self.doubtful, disk)
        self.model.check(disk, self.node.layout, is_recovered=self.node.dra.is_up)
        self.model.begin_step()

    async def until_nothing_is_left(self) -> None:
        """What is prepared is not any more; the tree and the CDI folder are as on a new node."""
        for claim in self.model.claims:
            await self.node.unprepare(claim)
            self.note_unprepared(claim)
        await self.finish()
        assert _names(self.node.layout.claims) == {".trash", ".writer"}
        assert not _names(self.node.node.cdi_dir)
        shutil.rmtree(self.node.claims)
        self.node.claims.mkdir()

    async def _note_what_was_heard(self) -> None:
        """dra-plugin has heard of every end that it has yet to hear of, after the runtime's list if that came anew."""
        session = self._session if self._is_settled else (await self.node.dra.debug("state"))["nri_session"]
        is_compared, self._session = session != self._session, session
        for one in self.model.tracked:
            compared = self._compared(one, session) if is_compared else dict(zip(Status, Status, strict=True))
            heard = {status: status if one.owed is None else _after(status, one.owed) for status in Status}
            may = {heard[compared[status]] for status in one.may}
            if self.victim is self.node.dra:
                may |= {compared[heard[status]] for status in one.may}  # the one that died may have been told before
            self.model.expect(one, *may)
            if one.owed is not None:
                # The one that died may have heard, and has forgotten it.
                one.owed, one.released_by = None, None if self.victim is self.node.dra else self.incarnation

    def _compared(self, one: Tracked, session: int) -> dict[Status, Status]:
        """What becomes of a container's binding when the runtime's list is compared with it.

        What an earlier session left of the dead goes, but for what counts as live for two minutes; a start that nobody told is
        recorded, and so is a container that nobody told of, where its partition was there before it.
        """
        same = dict(zip(Status, Status, strict=True))
        is_adopted = self.model.may_be_adopted(one)
        if one.container.is_alive:
            bound = Status.STARTED if one.container.pids else Status.UNSTARTED
            return same | {Status.UNSTARTED: bound} | ({Status.ABSENT: bound} if is_adopted else {})
        if any(self.model.may_be_adopted(other) for other in self.model.tracked if other.place == one.place):
            return dict.fromkeys(Status, Status.ABSENT)
        return same | ({Status.STARTED: Status.ABSENT, Status.STOPPED: Status.ABSENT} if one.session < session else {})

    def _resolve(self, claim: Manifest, disk: Disk) -> None:
        """The claim is what its record says, or gone."""
        self.doubtful = None
        record = disk.records.get(claim.uid)
        if record is not None and record.state is ClaimState.PREPARED:
            self.note_prepared(claim)
        else:
            self.note_unprepared(claim)

    async def _is_trash_empty(self) -> bool:
        return not _names(self.node.layout.trash)

    async def _are_specs_there(self) -> bool:
        disk = node_model.look(self.node.layout, self.node.node.cdi_dir)
        prepared = [uid for uid, record in disk.records.items() if record and record.state is ClaimState.PREPARED]
        return len(prepared) <= len(disk.specs)


def _names(folder: PurePath) -> set[str]:
    return set(os.listdir(folder))


def _after(status: Status, told: Status) -> Status:
    """What becomes of a container's binding when its end is heard of."""
    return Status.ABSENT if status is Status.ABSENT else told
