"""A node on disk for the state of dra-plugin."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra.assignments import Assigned
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.claims import ClaimRecord
from vgpu_state.ids import RuntimeId
from vgpu_testkit import deep_cgroups
from vgpu_testkit.deep_cgroups import DeepCgroups
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import FACTS, OTHER_ID, OTHER_POD, POD


@pytest.fixture
def node(tmp_path: Path) -> DraTree:
    return DraTree(root=tmp_path)


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Within the context no file can grow beyond so many bytes: a write ends part of the way with EFBIG, as one does with
    ENOSPC on a full disk.
    """

    @contextmanager
    def fill(size_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return fill


@pytest.fixture
def record(node: DraTree) -> ClaimRecord:
    """The example claim, prepared on the node."""
    return node.claims.prepare(ALLOCATION, asked_at_s=1000.0)


@pytest.fixture
def facts(record: ClaimRecord) -> ContainerFacts:
    """The container `train` with the grant that Prepare gave."""
    return replace(FACTS, grants=(replace(FACTS.grants[0], nonce=record.vgpus[0].grant.nonce),))


@pytest.fixture
def other(facts: ContainerFacts) -> ContainerFacts:
    """A container of another pod that shows the same grant and has the same device."""
    return replace(facts, pod=OTHER_POD, runtime_id=OTHER_ID)


@pytest.fixture
def start(node: DraTree) -> Callable[[Assigned, RuntimeId], None]:
    """Runs the container as PIDs 41 and 42, with the mounts of an assignment."""

    def run(assigned: Assigned, runtime_id: RuntimeId) -> None:
        node.run_container(runtime_id, POD, [41, 42], mounts=node.container_mounts(assigned.mounts))

    return run


@pytest.fixture
def deep() -> Iterator[DeepCgroups]:
    with deep_cgroups.made() as deep:
        yield deep
