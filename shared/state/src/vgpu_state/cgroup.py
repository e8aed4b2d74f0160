"""/proc/<pid>/cgroup → which pod and container a process belongs to, by the kernel's word.

Knows cgroup v1, hybrid and v2, kubelet's cgroupfs and systemd drivers, and the relative paths (`/../../pod…`) that a reader
inside a cgroup namespace of its own is shown. Does not read files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgpu_state.ids import PodUid, RuntimeId

_POD = re.compile(r"(?:.*-)?pod([0-9a-f]{8}[-_](?:[0-9a-f]{4}[-_]){3}[0-9a-f]{12})(?:\.slice)?\Z")
# containerd told to use systemd below a cgroupfs kubelet puts slice, prefix and id into one component.
_JOINED = re.compile(r"(?:.*-)?pod([0-9a-f]{8}_(?:[0-9a-f]{4}_){3}[0-9a-f]{12})\.slice:[\w.-]*:([0-9a-f]{64})\Z")
_CONTAINER = re.compile(r"(?:[a-z]+(?:-[a-z]+)*-)?([0-9a-f]{64})(?:\.scope)?\Z")
# Below this a user's own service manager makes cgroups, under any name.
_USERS = "user.slice"
# What may stand above a pod's component: kubelet's own levels, or nothing that our cgroup namespace lets us see.
_ABOVE_POD = re.compile(r"(?:(?:[\w.-]*-)?kubepods(?:-burstable|-besteffort)?(?:\.slice)?|burstable|besteffort|\.\.|)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCgroup:
    """Where a process of a pod lives. `container_id` is None when it sits in the pod's own level."""

    pod_uid: PodUid
    container_id: RuntimeId | None
    path: str


@dataclass(frozen=True, slots=True)
class AmbiguousCgroup:
    """The hierarchies of cgroup v1 put the process into different containers: nobody can be believed."""

    paths: tuple[str, ...]


def hierarchy_paths(text: str) -> tuple[str, ...]:
    """The path of each line `<id>:<controllers>:<path>`; a path may contain colons."""
    # Not splitlines(): the kernel forbids only the line feed in a name, and whoever may make cgroups would end lines with others.
    return tuple(line.split(":", 2)[2] for line in text.split("\n") if line.count(":") >= 2)


def locate(text: str) -> ContainerCgroup | AmbiguousCgroup | None:
    """The container of the process whose /proc/<pid>/cgroup is `text`; None when it belongs to no pod."""
    found = [place for path in hierarchy_paths(text) if (place := locate_path(path)) is not None]
    if not found:
        return None
    with_container = [p for p in found if p.container_id is not None] or found
    identities = {(p.pod_uid, p.container_id) for p in with_container}
    if len(identities) > 1 or len({p.pod_uid for p in found}) > 1:
        return AmbiguousCgroup(tuple(p.path for p in found))
    return with_container[0]


def locate_path(path: str) -> ContainerCgroup | None:
    """The outermost pod component of a cgroup path and the container id right below it.

    Outermost, since a container may make cgroups below its own and name them as it likes. The returned path ends at the
    container's component (at the pod's, when there is none).
    """
    parts = path.split("/")
    for i, part in enumerate(parts):
        if part == _USERS:
            return None
        if joined := _JOINED.match(part):
            return _place(joined.group(1), joined.group(2), parts[: i + 1])
        pod = _POD.match(part)
        if pod is None or _ABOVE_POD.match(parts[i - 1] if i else "") is None:
            continue
        below = _CONTAINER.match(parts[i + 1]) if i + 1 < len(parts) else None
        return _place(pod.group(1), below and below.group(1), parts[: i + 2 if below else i + 1])
    return None


def _place(pod: str, container: str | None, parts: list[str]) -> ContainerCgroup:
    return ContainerCgroup(
        pod_uid=PodUid(pod.replace("_", "-")),
        container_id=RuntimeId(container) if container else None,
        path="/".join(parts),
    )
