"""Two dra-plugins of one node, and the sockets by which kubelet finds the one that serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vgpu_daemon import sockets
from vgpu_testkit import trees
from vgpu_testkit.daemons import Daemon
from vgpu_testkit.dra_bench import DRIVER, Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import Accepted

CLAIM = half_a_gpu()
CONTAINER = Container()
ONE_POD = "11111111-54f1-4c86-9b57-2f1d2b8f4c11"
ANOTHER_POD = "22222222-54f1-4c86-9b57-2f1d2b8f4c11"


def _of_pod(dra: Daemon, pod_uid: str) -> Daemon:
    """A dra-plugin that was not started, of that pod."""
    return replace(dra, environment=dra.environment | {"VGPU_POD_UID": pod_uid}, process=None)


def _service(bench: DraBench, pod_uid: str) -> str:
    return str(bench.node.kubelet_dir / f"plugins/{DRIVER}/dra-{pod_uid}.sock")


async def test_second_instance_is_ready_while_it_waits_and_takes_over_when_the_first_is_killed(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(CLAIM)
    await bench.ensure(CLAIM, CONTAINER)
    before = trees.stamps(*bench.roots)
    first, second = bench.dra, replace(bench.dra, process=None)

    second.start()
    try:
        await second.stands_by()
        assert (await first.debug("state"))["phase"] == "serving"  # the debug socket is still the first one's
        assert await bench.prepare(CLAIM) == devices  # the first still serves kubelet
        assert trees.stamps(*bench.roots) == before
        first.kill()
        bench.dra = second
        await bench.until_phase("serving")
        await bench.serving()

        assert await bench.prepare(CLAIM) == devices
        await bench.ensure(CLAIM, CONTAINER)
        assert trees.stamps(*bench.roots) == before
    finally:
        first.kill()


async def test_waiting_instance_of_another_pod_is_not_registered_and_takes_over_when_the_first_ends(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    first, second = _of_pod(bench.dra, ONE_POD), _of_pod(bench.dra, ANOTHER_POD)
    bench.dra = first
    await bench.start()
    devices = await bench.prepare(CLAIM)
    kubelet = bench.kubelet
    assert kubelet is not None

    second.start()
    try:
        await second.stands_by()
        assert kubelet.connected_endpoints(DRIVER) == (_service(bench, ONE_POD),)
        assert first.stop() == 0
        bench.dra = second
        await bench.serving()

        assert kubelet.connected_endpoints(DRIVER) == (_service(bench, ANOTHER_POD),)
        assert await bench.prepare(CLAIM) == devices
    finally:
        first.kill()


async def test_sockets_of_a_killed_predecessor_are_removed_and_those_of_others_stay(bench: DraBench) -> None:
    """Of an earlier pod, and of a version that knew the plain names only."""
    assert bench.kubelet is not None
    for pod_uid in (ONE_POD, ""):
        bench.dra = _of_pod(bench.dra, pod_uid)
        await bench.start()
        bench.dra.kill()
    foreign = ("dra-AAAAAAAAAAAAAAAAAAAAAA-reg.sock", "gpu.example.com-reg.sock")
    for name in foreign:
        sockets.publish(bench.node.kubelet_dir / "plugins_registry" / name, mode=0o600).close()
    (bench.node.kubelet_dir / "plugins" / DRIVER / "dra-x.sock").touch()

    bench.dra = _of_pod(bench.dra, ANOTHER_POD)
    await bench.start()

    current = await bench.kubelet.registered(DRIVER)
    registrations = {str(path) for path in bench.node.kubelet_dir.glob("plugins_registry/*")}
    assert {Path(path).name for path in registrations - {current.socket}} == set(foreign)
    assert current.socket in registrations
    assert sorted(path.name for path in bench.node.kubelet_dir.glob("plugins/*/*")) == [f"dra-{ANOTHER_POD}.sock", "dra-x.sock"]


async def test_waiting_instance_ends_at_once_on_sigterm(bench: DraBench) -> None:
    await bench.start()
    second = replace(bench.dra, process=None)
    second.start()
    await second.stands_by()

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
