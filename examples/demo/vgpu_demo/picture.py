"""The node as text: each GPU with who has which slice of it."""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_demo.scene import GIB, DemoPod

_WIDTH = 40


def node_picture(pods: Sequence[DemoPod], *, gpus: int, memory_bytes: int, name: str) -> str:
    """One bar per GPU; a letter for each container, a dot for what is free. The bar is the memory."""
    owners: dict[int, list[tuple[str, str, int, int]]] = {i: [] for i in range(gpus)}
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for pod in pods:
        for container in pod.containers:
            letter = next(letters)
            for part in container.slices:
                owners[part.gpu].append((letter, f"{pod.name}/{container.name}", part.memory_bytes, part.cores_percent))
    rows = [f"  node node-a: {gpus} × {name}, {memory_bytes / GIB:.1f} GiB each"]
    for gpu, parts in owners.items():
        bar = "".join(letter * max(1, round(memory / memory_bytes * _WIDTH)) for letter, _, memory, _ in parts)
        legend = "   ".join(f"{letter} {who} {memory / GIB:g} GiB {cores} %" for letter, who, memory, cores in parts)
        rows.append(f"  GPU {gpu} │{bar[:_WIDTH]:·<{_WIDTH}}│ {legend}".rstrip())
    return "\n".join(rows)
