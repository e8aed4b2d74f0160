"""The example manifests → what the demo asks for: pods, their containers, and what each must find inside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vgpu_dra.allocation import Allocation, parse_allocation
from vgpu_state.ids import ClaimUid

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a container gets of one GPU."""

    gpu: int
    memory_bytes: int
    cores_percent: int

    def __str__(self) -> str:
        return f"GPU {self.gpu}: {self.memory_bytes / GIB:g} GiB, {self.cores_percent} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoContainer:
    """One container of a pod; `requests` None means all of the claim's."""

    name: str
    requests: tuple[str, ...] | None
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPod:
    """One pod with its one claim."""

    name: str
    namespace: str
    uid: str
    claim: Allocation
    containers: tuple[DemoContainer, ...]


def read_scene(directory: Path) -> tuple[DemoPod, ...]:
    """The pods of the manifests in `directory`, by name of the file. Not every example has one."""
    manifests = [list(yaml.safe_load_all(f.read_text())) for f in sorted(directory.glob("*.yaml"))]
    return tuple(read_pod(documents) for documents in manifests if any(d["kind"] == "Pod" for d in documents))


def read_pod(documents: Iterable[dict[str, Any]]) -> DemoPod:
    """The pod of a Pod and its ResourceClaim."""
    by_kind = {d["kind"]: d for d in documents}
    pod, claim = by_kind["Pod"], by_kind["ResourceClaim"]
    allocation = parse_allocation(claim, expected_uid=ClaimUid(claim["metadata"]["uid"]))
    return DemoPod(
        name=pod["metadata"]["name"],
        namespace=pod["metadata"]["namespace"],
        uid=pod["metadata"]["uid"],
        claim=allocation,
        containers=tuple(_container(c, allocation) for c in pod["spec"]["containers"]),
    )


def _container(spec: dict[str, Any], allocation: Allocation) -> DemoContainer:
    named = [entry["request"] for entry in spec["resources"]["claims"] if "request" in entry]
    requests = tuple(named) or None
    slices: dict[int, Slice] = {}
    for result in allocation.results:
        if requests is None or result.request in requests:
            gpu = int(result.device.removeprefix("vgpu-"))  # on the demo's node index, minor and name agree
            before = slices.get(gpu, Slice(gpu=gpu, memory_bytes=0, cores_percent=0))
            slices[gpu] = Slice(
                gpu=gpu,
                memory_bytes=before.memory_bytes + (result.memory_bytes or 0),
                cores_percent=before.cores_percent + (result.cores_percent or 0),
            )
    return DemoContainer(name=spec["name"], requests=requests, slices=tuple(slices[i] for i in sorted(slices)))
