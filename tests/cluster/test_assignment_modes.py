"""Both ways to a partition on one node: NRI comes and goes, feature gates change, pods run on, and each claim has one way."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import VgpuCluster, wait_until
from vgpu_testkit.cluster_vgpu_burst import Burst
from vgpu_testkit.cluster_vgpu_pods import SLEEP, STAY, Box, Namespace, claim_spec, opened, pod, request
from vgpu_testkit.cluster_vgpu_shapes import LIMITS, limits, modes, running_shapes, seen
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_ONE = claim_spec(request("gpu", memory="8Gi", cores="30"))
_OF_ONE = [Slice(memory_bytes=8 * GIB, cores_percent=30)]


@pytest.fixture
def namespace(vgpu: VgpuCluster, cluster: Cluster) -> Iterator[Namespace]:
    """A namespace without pods and claims, on a node that is at rest and has NRI, whatever the test before ended."""
    if vgpu.stack.nri.has_ended:
        vgpu.stack.nri.start()
    vgpu.settle()
    with opened(vgpu) as found:
        yield found


@pytest.mark.timeout(300)
def test_pods_of_every_shape_run_through_nri_in_cgroup_mode(namespace: Namespace) -> None:
    with namespace.vgpu.gated(DevicePluginClientMode=False):
        namespace.vgpu.settle()
        _check_two_claims(namespace, script=f"read-limits && {SLEEP}", lines=1)
        namespace.clear()
        with running_shapes(namespace, registers=False) as names:
            shown = seen(namespace, names, registers=False)

            assert {where: limits(one) for where, one in shown.items()} == LIMITS
            assert {one["compatibility_mode"] for one in shown.values()} <= {101, 102}
            assert "comm" in namespace.inside(names["one request"], "ls", "/etc/vgpu-manager/.host_proc/1").split()
            assert set(modes(namespace, names).values()) == {"lazy"}


def test_container_of_two_claims_has_the_limits_of_both_and_registers_once(namespace: Namespace) -> None:
    shown = _check_two_claims(namespace, script=STAY, lines=2)

    assert len(shown["pids"]) >= 2


def _check_two_claims(namespace: Namespace, *, script: str, lines: int) -> Object:
    """What is read in a container with shares of one GPU from two claims, and of another one from the second."""
    one, two = claim_spec(_on("a", 3, "8Gi", "30")), claim_spec(_on("b", 3, "4Gi", "10"), _on("c", 5, "2Gi", "20"))
    document = pod(namespace.template(one), Box(script=script))
    document["spec"]["resourceClaims"].append({"name": "more", **namespace.template(two)})
    document["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})

    name = namespace.run(document)

    shown = namespace.seen(name, lines=lines)[-1]
    assert {device["index"]: (device["total_memory"], device["hard_core"]) for device in shown["devices"]} == {
        3: (12 * GIB, 40),
        5: (2 * GIB, 20),
    }
    bindings = [json.loads(path.read_text()) for path in _claims(namespace.vgpu).glob("*/*/binding.json")]
    homes = [path.parent.parent.parent.name for path in _claims(namespace.vgpu).glob("*/*/config/vgpu.config")]
    assert (len(bindings), homes) == (2, [min(namespace.vgpu.claims())])
    return shown


def _on(name: str, gpu: int, memory: str, cores: str) -> Object:
    """A request for a share of that GPU."""
    asked = request(name, memory=memory, cores=cores)
    cel = {"expression": f"device.attributes['manager.nvidia.com'].minor == {gpu}"}
    asked["exactly"]["selectors"] = [{"cel": cel}]
    return asked


def _claims(vgpu: VgpuCluster) -> Path:
    return vgpu.stack.node.manager_dir / "claims"


@pytest.mark.timeout(300)
def test_pods_keep_their_bytes_while_their_node_is_moved_to_eager_and_back(namespace: Namespace) -> None:
    vgpu, used = namespace.vgpu, namespace.template(_ONE)
    lazy = [namespace.create(pod(used)) for _ in range(3)]
    namespace.wait_running(*lazy)
    of_lazy = _limits_files(namespace, lazy)

    with vgpu.cluster.runtime(nri=False), vgpu.gated(NRISupport=False):
        eager = [namespace.create(pod(used, restart="Always")) for _ in range(3)]
        namespace.wait_running(*eager)
        of_eager = _limits_files(namespace, eager)

        assert Counter(vgpu.modes().values()) == {"lazy": 3, "nri_disabled": 3}
        assert [limits(namespace.seen(name)[-1]) for name in eager] == [_OF_ONE] * 3
        assert _limits_files(namespace, lazy) == of_lazy
        namespace.delete(lazy.pop())
        wait_until(lambda: len(vgpu.claims()) == 5, "the claim of one of the lazy is unprepared")

    vgpu.settle()
    late = namespace.run(pod(used))
    # One whose container is made anew, by a runtime with NRI, stays what it was.
    os.kill(namespace.processes(eager[0])[0], signal.SIGKILL)
    namespace.wait_restarts(eager[0], 1)
    assert Counter(vgpu.modes().values()) == {"lazy": 3, "nri_disabled": 3}
    assert _limits_files(namespace, [*lazy, *eager]) == {name: (of_lazy | of_eager)[name] for name in (*lazy, *eager)}
    assert [list(namespace.slices_now(name).values()) for name in (*eager, *lazy, late)] == [_OF_ONE] * 6
    for name in eager:
        namespace.delete(name)
    wait_until(lambda: set(vgpu.modes().values()) == {"lazy"}, "the claims of the eager are unprepared")
    assert vgpu.eager_claims() == {}


def _limits_files(namespace: Namespace, names: list[str]) -> dict[str, bytes]:
    """The bytes on the host of each pod's one limits file, by the pod's name."""
    found = {}
    for name in names:
        (path,) = (_claims(namespace.vgpu) / namespace.claim_of(name)["metadata"]["uid"]).glob("*/config/vgpu.config")
        found[name] = path.read_bytes()
    return found


def test_second_pod_on_a_claim_that_was_prepared_for_another_is_refused_by_nri_or_when_it_registers(namespace: Namespace) -> None:
    """kubelet has a claim prepared once: it does not ask again for the pods that come later."""
    vgpu = namespace.vgpu
    with vgpu.gated(NRISupport=False):
        used = namespace.claim(_ONE)
        first = namespace.run(pod(used))

        created = namespace.create(pod(used))
        namespace.wait_event(created, f"partition was made without NRI for main of pod default/{first}")
        vgpu.stack.nri.kill()
        started = namespace.create(pod(used))
        wait_until(lambda: namespace.pod(started)["status"]["phase"] == "Failed", "the pod that NRI did not see has failed")

        (whose,) = {one["pod_uid"] for one in namespace.seen(started, lines=1)}
        assert whose == namespace.pod(first)["metadata"]["uid"]
        assert f"desc = the call says pod {whose}, but process " in namespace.story(started)[-1]
        assert list(namespace.slices_now(first).values()) == _OF_ONE


@pytest.mark.timeout(500)
def test_pods_of_a_burst_have_one_mode_each_and_its_limits_while_nri_is_lost_and_regained(namespace: Namespace) -> None:
    vgpu, burst = namespace.vgpu, Burst(namespace)
    burst.create(6)
    wait_until(vgpu.claims, "the first claim of the burst is prepared")

    vgpu.stack.nri.kill()
    burst.create(5)
    vgpu.wait_nri_away()
    burst.create(5)
    wait_until(lambda: "nri_lost" in vgpu.modes().values(), "claims are prepared without NRI")
    while_away = vgpu.modes()
    assert set(while_away.values()) == {"lazy", "nri_lost"}
    vgpu.stack.nri.start()
    burst.create(4)

    fates = burst.fates()
    assert [fate.story for fate in fates if fate.kind == "stuck"] == []
    assert burst.wrong_limits() == []
    found = vgpu.modes()
    assert {uid: mode for uid, mode in found.items() if uid in while_away} == {
        uid: mode for uid, mode in while_away.items() if uid in found
    }
    assert set(found.values()) == {"lazy", "nri_lost"}
    # Those of pods that have ended are unprepared meanwhile.
    wait_until(lambda: vgpu.eager_claims() == _eager_records(vgpu), "what is counted is what the records say")
    assert list(_eager_records(vgpu)) == ["nri_lost"]


def _eager_records(vgpu: VgpuCluster) -> dict[str, int]:
    """How many records say that their claim's partitions were made at Prepare, by the reason in them."""
    records = [json.loads(path.read_text())["payload"] for path in _claims(vgpu).glob("*/claim.json")]
    return Counter(record["eager"]["reason"] for record in records if record["mode"] == "eager")


@pytest.mark.timeout(300)
def test_container_of_a_lazy_claim_waits_for_nri_to_come_back(namespace: Namespace) -> None:
    name = namespace.run(pod(namespace.template(_ONE), restart="Always"))
    namespace.vgpu.stack.nri.kill()

    os.kill(namespace.processes(name)[0], signal.SIGKILL)

    namespace.wait_event(name, "/created-without-nri")
    namespace.vgpu.stack.nri.start()
    namespace.wait_running(name)
    assert list(namespace.slices(name).values()) == _OF_ONE
