"""What may happen on a node where dra-plugin prepares claims without NRI: some share, some come late, some register by UUID."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from grpclib.const import Status as Code

from vgpu_state import container_abi
from vgpu_testkit import node_claims
from vgpu_testkit.light_node import KubeletWasRefused
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.node_model import Place, Status, Tracked
from vgpu_testkit.node_steps import Steps
from vgpu_testkit.nri_plugin_link import PluginRefused

_UUID_ENV = f"{container_abi.ENV_REGISTER_UUID}="


class EagerSteps(Steps):
    """Steps on one stage; those of `Steps` are the same whichever way a claim was prepared."""

    async def create_stranger(self, place: Place) -> None:
        """A container for which no partition was made: NRI tells of it in time."""
        before = self._stage.stamps()
        with pytest.raises(PluginRefused, match="whose partition was made without NRI for") as refusal:
            await self._node.runtime.create(place.pod, self._spec(place))
        assert refusal.value.code is Code.FAILED_PRECONDITION
        self._tally["create refused, no partition"] += 1
        self._stage.check_unchanged(before)

    async def prepare_shared(self, claim: Manifest, places: Sequence[Place]) -> None:
        """Prepare without NRI for containers that want one request, or are of several pods."""
        before = self._stage.stamps()
        node_claims.reserve(claim, places, self._node.claims)
        with pytest.raises(KubeletWasRefused, match=r"without NRI its partitions are made at Prepare|can run at once and share"):
            await self._node.prepare(claim)
        self._tally["prepare refused, shared"] += 1
        self._stage.check_unchanged(before)

    async def register_by_uuid(self, one: Tracked) -> None:
        """As `register`, of a container that nobody need have told of, with the UUID that CDI gave it."""
        pid = os.getpid()
        self._node.runtime.run_process(one.container, pid)
        after = tuple(sorted(one.container.pids))
        uuids = [e.partition("=")[2] for e in one.container.config["process"]["env"] if e.startswith(_UUID_ENV)]
        await self._node.register(register_uuid=uuids[-1])
        self._tally["registered by UUID" + ("" if one.is_bound else ", and bound")] += 1
        for predecessor in self._model.predecessors(one.place):
            self._model.expect(predecessor, Status.ABSENT)
        self._model.expect(one, Status.STARTED)
        one.recorded = after
        self._node.runtime.end_process(one.container, pid)
