"""Does the started container really see our files at our destinations? Pure, over the kernel's mount tables.

The destinations were compared when the container was created; what only the mount table shows is a volume that came through a
symlink of the image, and a link left in a shared /tmp that takes our scratch elsewhere.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from vgpu_dra.policy.admission import OUR_DESTINATIONS, is_below
from vgpu_state import container_abi, layout
from vgpu_state.container_abi import Mount
from vgpu_state.errors import PreconditionFailed
from vgpu_state.mountinfo import MountEntry, visible_mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must lie on top at `destination`: a file system's device and path within it; None: any whole one of type `fs_type`.

    `versions` is how the paths begin that do as well; "" where none does.
    """

    destination: str
    content: tuple[str, str] | None
    fs_type: str = "tmpfs"
    versions: str = ""


def expect(mount: Mount, *, agent_path: str, own_mounts: Sequence[MountEntry]) -> Expected:
    """What the container's table must show for one of our mounts.

    `agent_path` is the source as this process sees it, links resolved; our own table says which file system that is on.
    """
    if mount.type == "tmpfs":
        return Expected(destination=mount.destination, content=None)
    if mount.destination == container_abi.HOST_PROC_DIR:
        # The host's /proc; ours is another mount of the same processes.
        return Expected(destination=mount.destination, content=None, fs_type="proc")
    content = content_of(own_mounts, agent_path)
    if mount.destination == container_abi.LIBRARY and content is not None:
        # A container keeps the library that it was created with, and may register long after another was installed.
        versions = posixpath.join(posixpath.dirname(content[1]), layout.LIBRARY_PREFIX)
        return Expected(destination=mount.destination, content=content, versions=versions)
    return Expected(destination=mount.destination, content=content)


def content_of(entries: Sequence[MountEntry], path: str) -> tuple[str, str] | None:
    """Device number and path within the file system of an absolute path without links."""
    mount = visible_mount(entries, path)
    if mount is None:
        return None
    below = path[len(mount.mount_point.rstrip("/")) :].lstrip("/")
    return mount.device, posixpath.join(mount.root, below) if below else mount.root


def check_mount_table(entries: Sequence[MountEntry], expected: Sequence[Expected], *, who: str) -> None:
    """Returns when each expected mount is the one on top, and nothing else is visible below our destinations.

    Raises:
        PreconditionFailed: naming the container, the path and what was found there.
    """
    ours = {e.destination for e in expected}
    for item in expected:
        seen = visible_mount(entries, item.destination)
        if seen is None or not _fits(seen, item):
            raise PreconditionFailed(
                f"{who}: {item.destination} does not show what we mounted there but {_shown(seen)}: a link in the image or in a "
                "shared /tmp, or a volume mounted through one, leads elsewhere"
            )
    for entry in entries:
        if entry.mount_point in ours or not _is_in_ours(entry.mount_point):
            continue
        if visible_mount(entries, entry.mount_point) == entry:
            raise PreconditionFailed(f"{who}: something else is mounted at {entry.mount_point}: {_shown(entry)}")


def _fits(seen: MountEntry, item: Expected) -> bool:
    if seen.mount_point != item.destination:
        return False
    if item.content is None:
        return seen.fs_type == item.fs_type and seen.root == "/"
    if item.versions and seen.device == item.content[0] and seen.root.startswith(item.versions):
        return True
    return seen.content == item.content


def _is_in_ours(path: str) -> bool:
    return any(path == ours or is_below(path, ours) for ours in OUR_DESTINATIONS)


def _shown(entry: MountEntry | None) -> str:
    if entry is None:
        return "no mount at all"
    return f"{entry.fs_type} {entry.device} {entry.root} mounted at {entry.mount_point}"
