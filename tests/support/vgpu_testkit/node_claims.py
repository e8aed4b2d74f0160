"""Three claims of a node: one request, requests on two GPUs, requests that share a GPU; and what each container of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vgpu_testkit.manifests import Consumer, Manifest, PodManifest, Share
from vgpu_testkit.node_model import Place, Slice

GIB = 1 << 30

# GPU, memory, cores of each request, by claim.
CLAIMS = (
    {"gpu": (0, 8, 50)},
    {"trainer": (5, 40, 50), "server": (1, 8, 20)},
    {"a": (3, 10, 30), "b": (3, 20, 40), "c": (6, 4, 10)},
)
# The same as limits of a container that has these requests: a GPU's shares are summed.
LIMITS: dict[tuple[Any, ...], dict[int, Slice]] = {
    (0, "gpu"): {0: Slice(memory_bytes=8 * GIB, cores_percent=50)},
    (1, "trainer"): {5: Slice(memory_bytes=40 * GIB, cores_percent=50)},
    (1, "server"): {1: Slice(memory_bytes=8 * GIB, cores_percent=20)},
    (1, "server", "trainer"): {
        1: Slice(memory_bytes=8 * GIB, cores_percent=20),
        5: Slice(memory_bytes=40 * GIB, cores_percent=50),
    },
    (2, "a"): {3: Slice(memory_bytes=10 * GIB, cores_percent=30)},
    (2, "b"): {3: Slice(memory_bytes=20 * GIB, cores_percent=40)},
    (2, "c"): {6: Slice(memory_bytes=4 * GIB, cores_percent=10)},
    (2, "a", "b"): {3: Slice(memory_bytes=30 * GIB, cores_percent=70)},
    (2, "a", "c"): {3: Slice(memory_bytes=10 * GIB, cores_percent=30), 6: Slice(memory_bytes=4 * GIB, cores_percent=10)},
    (2, "a", "b", "c"): {3: Slice(memory_bytes=30 * GIB, cores_percent=70), 6: Slice(memory_bytes=4 * GIB, cores_percent=10)},
}


def manifests() -> tuple[Manifest, ...]:
    """The three, each time with other uids."""
    return tuple(
        Manifest(
            name=f"claim-{number}",
            shares=tuple(
                Share(request=request, device=f"vgpu-{gpu}", memory=f"{gib}Gi", cores=str(percent))
                for request, (gpu, gib, percent) in requests.items()
            ),
        )
        for number, requests in enumerate(CLAIMS)
    )


def reserve(claim: Manifest, places: Sequence[Place], directory: Path) -> None:
    """The claim and the pods of these places, which it is reserved for, are in `directory`."""
    pods = tuple(
        PodManifest(
            name=pod.spec.name,
            uid=pod.spec.uid,
            containers=tuple(
                Consumer(name=place.name, uses={claim.name: tuple(sorted(place.requests))})
                for place in places
                if place.pod == pod
            ),
        )
        for pod in {place.pod.id: place.pod for place in places}.values()
    )
    for pod in pods:
        pod.write(directory)
    replace(claim, reserved_for=pods).write(directory)
