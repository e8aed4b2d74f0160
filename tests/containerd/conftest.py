"""A real containerd of each line of releases for every test below this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_testkit import node_ways, vgpu_node
from vgpu_testkit.containerd import Containerd, find_containerds
from vgpu_testkit.cri import Cri
from vgpu_testkit.daemons import Stack, StackPaths, make_stack
from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.node import build_node
from vgpu_testkit.vgpu_node import VgpuNode

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies below this folder: it needs root and `make containerd`."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.containerd)


@pytest.fixture(scope="session", params=["1.7", "2"])
def containerd_process(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """A containerd that lives as long as the run; tests use `containerd`, which leaves none of their pods behind."""
    program = find_containerds().get(request.param)
    if program is None:
        pytest.fail(f"containerd {request.param} is not installed: run make containerd")
    if os.geteuid() != 0:
        pytest.fail("containerd runs as root only: run the tests marked containerd as root")
    # Not pytest's own folder: a socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix=f"vgpu-ctd-{request.param}-"))
    process = Containerd(program, root)
    try:
        process.start()
        yield process
    finally:
        process.stop()
        shutil.rmtree(root)


@pytest.fixture
async def containerd(containerd_process: Containerd) -> AsyncIterator[Containerd]:
    """A containerd that runs and has no pods, with an empty CDI folder."""
    containerd_process.start()
    yield containerd_process
    containerd_process.start()
    async with Cri(containerd_process.socket) as cri:
        await cri.wipe()
    for spec in containerd_process.cdi_dir.iterdir():
        spec.unlink()


@pytest.fixture
async def cri(containerd: Containerd) -> AsyncIterator[Cri]:
    """A client of that containerd."""
    async with Cri(containerd.socket) as client:
        yield client


@pytest.fixture(scope="session")
def images(containerd_process: Containerd, native: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What containers of the main job are made from, known to that containerd."""
    archive = tmp_path_factory.mktemp("images") / "image.tar"
    containerd_process.start()
    vgpu_node.import_demo_image(containerd_process, native, archive)
    vgpu_node.import_library_image(containerd_process, native, archive)


@pytest.fixture(scope="module")
def services(containerd_process: Containerd, images: None, native: Path) -> Iterator[Stack]:
    """The three services on a fake node of that containerd, started by the first test that asks for `node`."""
    root = Path(tempfile.mkdtemp(prefix="vgpu-node-"))
    node = replace(build_node(root / "n", native=native), cdi_dir=containerd_process.cdi_dir)
    (root / "claims").mkdir()
    stack = make_stack(node, StackPaths(claims=root / "claims", nri_socket=containerd_process.nri_socket))
    try:
        yield stack
    finally:
        for daemon in stack.daemons:
            vgpu_node.thaw(daemon)
        node_ways.set_up(stack, containerd_process, node_ways.WITH_NRI)
        shutil.rmtree(root)


@pytest.fixture
async def node(services: Stack, containerd: Containerd) -> AsyncIterator[VgpuNode]:
    """The node of the main job: services, kubelet and containerd at rest, no claim, no pod."""
    async with vgpu_node.open_node(services, containerd, services.node.root.parent / "claims") as opened:
        yield opened


@pytest.fixture
async def claim(node: VgpuNode) -> AsyncIterator[Manifest]:
    """A claim of half of GPU 5, by request `gpu`; whatever the test does with it, no log has its nonce."""
    prepared = await node.prepare(Share(request="gpu", device="vgpu-5"))
    nonces = [value.rpartition("/")[2] for value in node.grant_env(prepared, "gpu").values()]
    yield prepared
    logs = "".join(daemon.log.read_text() for daemon in node.stack.daemons)
    assert [nonce for nonce in nonces if nonce in logs] == []
