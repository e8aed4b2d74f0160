"""The main job on a real cluster: what the scheduler gave a claim is what a program in its container reads, and no more."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import wait_until
from vgpu_testkit.cluster_vgpu_pods import CLAIMS, SCRIPT, STAY, Box, Namespace, claim_spec, pod, request
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_PODS = 20


def test_pod_of_a_template_reads_what_it_asked_for_and_registers(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))

    name = namespace.run(pod(used))

    before, after = namespace.seen(name)
    found, claim = namespace.pod(name), namespace.claim_of(name)
    (device,) = after["devices"]
    assert (device["total_memory"], device["real_memory"], device["memory_limit"]) == (8 * GIB, 8 * GIB, 1)
    assert (device["hard_core"], device["core_limit"], device["memory_oversold"]) == (30, 1, 0)
    assert before["devices"] == after["devices"]
    assert (after["pod_uid"], after["pod_name"], after["container_name"]) == (found["metadata"]["uid"], name, "main")
    (result,) = _results(claim)
    assert result["device"] == f"vgpu-{device['index']}"
    assert result["consumedCapacity"] == {"cores": "30", "memory": "8Gi"}
    assert len(result["shareID"]) == 36
    (published,) = [one for one in namespace.vgpu.devices() if one["name"] == result["device"]]
    assert published["attributes"]["uuid"]["string"] == device["uuid"].lower()
    # While it registered there were two, the shell and device-client; the registry looks again every ten seconds.
    assert set(namespace.processes(name)) < set(after["pids"])
    wait_until(lambda: namespace.recorded(name) == namespace.processes(name), "the PID list holds the lasting process only")


def test_containers_of_one_pod_read_their_own_request_of_a_claim(namespace: Namespace) -> None:
    requests = (request("train", memory="40Gi", cores="60"), request("serve", memory="4Gi", cores="20"))
    used = namespace.template(claim_spec(*requests))

    name = namespace.run(pod(used, Box(name="train", uses=("train",)), Box(name="serve", uses=("serve",))))

    given = _gpus(namespace.claim_of(name))
    assert namespace.slices(name, "train") == {given["train"][0]: Slice(memory_bytes=40 * GIB, cores_percent=60)}
    assert namespace.slices(name, "serve") == {given["serve"][0]: Slice(memory_bytes=4 * GIB, cores_percent=20)}


def test_two_of_one_request_are_on_different_gpus(namespace: Namespace) -> None:
    asked = request("gpus", memory="10Gi", cores="25", count=2)
    used = namespace.template(claim_spec(asked, distinct="uuid"))

    name = namespace.run(pod(used))

    first, second = _gpus(namespace.claim_of(name))["gpus"]
    share = Slice(memory_bytes=10 * GIB, cores_percent=25)
    assert first != second
    assert namespace.slices(name) == {first: share, second: share}


def test_two_pods_share_a_claim_by_its_requests(namespace: Namespace) -> None:
    used = namespace.claim(claim_spec(request("one", memory="1Gi", cores="10"), request("two", memory="2Gi", cores="20")))

    one = namespace.run(pod(used, Box(uses=("one",))))
    two = namespace.run(pod(used, Box(uses=("two",))))

    given = _gpus(namespace.vgpu.cluster.api.get(f"{CLAIMS}/{used['resourceClaimName']}"))
    assert namespace.slices(one) == {given["one"][0]: Slice(memory_bytes=1 * GIB, cores_percent=10)}
    assert namespace.slices(two) == {given["two"][0]: Slice(memory_bytes=2 * GIB, cores_percent=20)}


def test_second_pod_on_a_request_that_is_held_is_refused_and_told_why(namespace: Namespace) -> None:
    used = namespace.claim(claim_spec(request("gpu", memory="1Gi", cores="10")))
    first = namespace.run(pod(used))

    second = namespace.create(pod(used, restart="Always"))

    namespace.wait_event(second, f"which container main of pod default/{first} holds; one live container may hold a vGPU request")


@pytest.mark.timeout(300)
def test_pods_of_one_template_have_a_share_each_and_no_gpu_is_given_twice(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="20Gi", cores="30")))

    names = [namespace.create(pod(used)) for _ in range(_PODS)]

    namespace.wait_running(*names)
    given = {name: _gpus(namespace.claim_of(name))["gpu"][0] for name in names}
    share = Slice(memory_bytes=20 * GIB, cores_percent=30)
    assert {name: namespace.slices(name) for name in names} == {name: {given[name]: share} for name in names}
    # Three of 30 % fit on a GPU, a fourth does not.
    assert max(Counter(given.values()).values()) == 3


def test_container_that_is_restarted_in_place_has_a_new_partition_and_its_limits(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    name = namespace.run(pod(used, restart="Always"))
    (gpu,) = _gpus(namespace.claim_of(name))["gpu"]
    share = {gpu: Slice(memory_bytes=8 * GIB, cores_percent=30)}
    assert namespace.slices(name) == share
    binding = namespace.partition(name) / "binding.json"
    holders = {json.loads(binding.read_text())["runtime_id"]}

    for restarts in (1, 2):
        os.kill(namespace.processes(name)[0], signal.SIGKILL)
        namespace.wait_restarts(name, restarts)

        assert namespace.slices(name) == share
        holders.add(json.loads(binding.read_text())["runtime_id"])
        assert set(namespace.processes(name)) <= set(namespace.recorded(name))
    assert len(holders) == 3


def test_init_container_and_then_the_app_use_one_request(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    init = Box(name="warm", uses=("gpu",), script=SCRIPT + "true")

    name = namespace.run(pod(used, Box(uses=("gpu",), script=STAY), init=(init,)))

    (gpu,) = _gpus(namespace.claim_of(name))["gpu"]
    share = {gpu: Slice(memory_bytes=8 * GIB, cores_percent=30)}
    assert (namespace.slices(name, "warm"), namespace.slices(name)) == (share, share)


def _results(claim: Object) -> list[Object]:
    results: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return results


def _gpus(claim: Object) -> dict[str, list[int]]:
    """The indices of the GPUs that the scheduler gave each request."""
    found: dict[str, list[int]] = {}
    for result in _results(claim):
        found.setdefault(result["request"], []).append(int(result["device"].removeprefix("vgpu-")))
    return found
