"""Two dra-plugins of one node, and the sockets by which kubelet finds the one that serves."""

from __future__ import annotations

from dataclasses import replace

from vgpu_testkit import trees
from vgpu_testkit.dra_bench import DRIVER, Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import Accepted

CLAIM = half_a_gpu()
CONTAINER = Container()


async def test_second_instance_is_ready_while_it_waits_and_takes_over_when_the_first_is_killed(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(CLAIM)
    await bench.ensure(CLAIM, CONTAINER)
    before = trees.stamps(*bench.roots)
    first, second = bench.dra, replace(bench.dra, process=None)

    second.start()
    bench.dra = second
    try:
        await bench.until_phase("waiting for the writer lock")  # the debug socket is the newer one's
        await second.ready()
        assert await bench.prepare(CLAIM) == devices  # the first still serves kubelet
        assert trees.stamps(*bench.roots) == before
        first.kill()
        await bench.until_phase("serving")
        await bench.serving()

        assert await bench.prepare(CLAIM) == devices
        await bench.ensure(CLAIM, CONTAINER)
        assert trees.stamps(*bench.roots) == before
    finally:
        first.kill()


async def test_waiting_instance_ends_at_once_on_sigterm(bench: DraBench) -> None:
    await bench.start()
    second = replace(bench.dra, process=None)
    second.start()
    await bench.until_phase("waiting for the writer lock")

    assert second.stop() == 0
    assert bench.kubelet is not None
    assert len(bench.kubelet.connected_endpoints(DRIVER)) == 1


async def test_registration_is_made_anew_when_its_socket_is_removed(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    assert bench.kubelet is not None
    seen = len(bench.kubelet.registrations)

    (bench.node.kubelet_dir / "plugins_registry/manager.nvidia.com-reg.sock").unlink()

    await bench.kubelet.until(lambda: any(isinstance(v, Accepted) for v in bench.kubelet.registrations[seen:]))  # type: ignore[union-attr]
    await bench.prepare(CLAIM)


async def test_service_socket_is_made_anew_when_it_is_removed(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    assert bench.kubelet is not None
    socket = bench.node.kubelet_dir / "plugins/manager.nvidia.com/dra.sock"
    socket.unlink()

    await bench.kubelet.until(socket.exists)
    await bench.kubelet.until(lambda: bool(bench.kubelet and bench.kubelet.connected_endpoints(DRIVER)))
    await bench.prepare(CLAIM)


async def test_sigterm_takes_both_sockets_back_and_leaves_the_claims(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    before = trees.stamps(*bench.roots)

    assert bench.dra.stop() == 0

    assert list(bench.node.kubelet_dir.glob("plugins_registry/*")) == []
    assert list(bench.node.kubelet_dir.glob("plugins/*/*")) == []
    assert trees.stamps(*bench.roots) == before
