"""Pods of each shape that has its vGPUs with NRI and without, and what their containers must find; whole GPUs beside them.

Owns what is asked and what is read. Whether NRI is there, and which feature gates are on, is said by the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import RESOURCES, VgpuCluster
from vgpu_testkit.cluster_vgpu_pods import CLAIMS, SCRIPT, SLEEP, STAY, Box, Namespace, claim_spec, pod, request, slices_in
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_DEPLOY = Path(__file__).parents[3] / "deploy/kustomize"
_CLASSES = f"{RESOURCES}/deviceclasses"
_VGPU = "example.com/vgpu"
_GPU = "nvidia.com/gpu"

_A, _B = request("a", memory="8Gi", cores="30"), request("b", memory="4Gi", cores="10")
_OF_A, _OF_B = Slice(memory_bytes=8 * GIB, cores_percent=30), Slice(memory_bytes=4 * GIB, cores_percent=10)

LIMITS: dict[tuple[str, str], list[Slice]] = {
    ("one request", "main"): [_OF_A],
    ("two requests", "main"): [_OF_B, _OF_A],
    ("two requests on one gpu", "main"): [Slice(memory_bytes=12 * GIB, cores_percent=40)],
    ("init, then app", "warm"): [_OF_A],
    ("init, then app", "main"): [_OF_A],
    ("sidecar and app", "watch"): [_OF_A],
    ("sidecar and app", "main"): [_OF_B],
    # All that an H100 has, and all of its time.
    ("extended resource", "main"): [Slice(memory_bytes=81559 * 2**20, cores_percent=None)],
}
"""By shape and container: what it may use of each of its GPUs, the least first."""

WHOLE = ("whole gpu", "whole gpu by extended resource")
"""The shapes that have all of a GPU, and no limits."""


@contextmanager
def named_classes(vgpu: VgpuCluster) -> Iterator[None]:
    """In the block pods can ask for a vGPU and for a whole GPU by name, without a claim."""
    api, names = vgpu.cluster.api, {"vgpu-manager": _VGPU, "gpu-manager": _GPU}
    for one in yaml.safe_load_all((_DEPLOY / "base/deviceclasses.yaml").read_text()):
        if name := names.get(one["metadata"]["name"]):
            spec = one["spec"] | {"extendedResourceName": name}
            api.create(_CLASSES, {"metadata": {"name": f"named-{one['metadata']['name']}"}, "spec": spec})
    try:
        yield
    finally:
        for name in names:
            api.delete(f"{_CLASSES}/named-{name}")


@contextmanager
def running_shapes(namespace: Namespace, *, registers: bool) -> Iterator[dict[str, str]]:
    """The names of running pods by their shape; their processes register where they are to. They go with the namespace."""
    stay, turn = (STAY, SCRIPT + "true") if registers else (f"read-limits && {SLEEP}", "read-limits")
    one, both = namespace.template(claim_spec(_A)), namespace.template(claim_spec(_A, _B, distinct="uuid"))
    whole = namespace.template(claim_spec({"name": "gpu", "exactly": {"deviceClassName": "gpu-manager"}}))
    warm = Box(name="warm", uses=("a",), script=turn)
    watch = Box(name="watch", uses=("a",), script=stay, restart="Always")
    documents = {
        # The whole ones first: shares would spread over all GPUs.
        "whole gpu": pod(whole, Box(script=SLEEP)),
        "whole gpu by extended resource": _by_resource(_GPU, SLEEP),
        "extended resource": _by_resource(_VGPU, stay),
        "one request": pod(one, Box(script=stay)),
        "two requests": pod(both, Box(uses=("a", "b"), script=stay)),
        "two requests on one gpu": pod(namespace.template(claim_spec(_A, _B, same="uuid")), Box(script=stay)),
        "init, then app": pod(one, Box(uses=("a",), script=stay), init=(warm,)),
        "sidecar and app": pod(both, Box(uses=("b",), script=stay), init=(watch,)),
    }
    with named_classes(namespace.vgpu):
        names = {shape: namespace.create(document) for shape, document in documents.items()}
        namespace.wait_running(*names.values())
        yield names


def seen(namespace: Namespace, names: dict[str, str], *, registers: bool) -> dict[tuple[str, str], Object]:
    """By shape and container: what a program in it read last, after it had registered."""
    lines = 2 if registers else 1
    return {(shape, box): namespace.seen(names[shape], box, lines=lines)[-1] for shape, box in LIMITS}


def limits(shown: Object) -> list[Slice]:
    """What the container may use of each of its GPUs, the least first."""
    return sorted(slices_in(shown).values(), key=lambda one: one.memory_bytes or 0)


def modes(namespace: Namespace, names: dict[str, str]) -> dict[str, str]:
    """By shape: "lazy", or why its claim's partitions were made at Prepare."""
    claims = namespace.vgpu.modes()
    return {shape: claims[_claim_uid(namespace, name)] for shape, name in names.items()}


def _claim_uid(namespace: Namespace, name: str) -> str:
    status = namespace.pod(name)["status"]
    if named := status.get("resourceClaimStatuses"):
        claim = named[0]["resourceClaimName"]
    else:
        claim = status["extendedResourceClaimStatus"]["resourceClaimName"]
    uid: str = namespace.vgpu.cluster.api.get(f"{CLAIMS}/{claim}")["metadata"]["uid"]
    return uid


def _by_resource(name: str, script: str) -> Object:
    """A pod that has one of a resource that a device class is named for."""
    document = pod({}, Box(script=script))
    del document["spec"]["resourceClaims"]
    document["spec"]["containers"][0]["resources"] = {"limits": {name: "1"}}
    return document
