"""A container without namespaces: its paths are mapped to the host's, and its mount table is written as it would be.

For machines that allow no user namespace. Nothing is read-only there and nothing is hidden: good for showing which files a
container is given, not for showing that it cannot change them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_state import mountinfo as host_mounts
from vgpu_testkit import oci, runtime_init
from vgpu_testkit.runtime_process import ProcessRefused

_KERNELS_OWN = ("/proc", "/dev", "/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMap:
    """Where a container's paths lie on the host; deeper destinations first."""

    rootfs: Path
    places: tuple[tuple[str, str], ...]

    def map_argument(self, argument: str) -> str:
        """An argument with each path of a mount in it, and a path of the image's that it is, replaced by the host's."""
        if argument.startswith("/") and self._mount_of(argument) is None:
            inside = f"{self.rootfs}{argument}"
            return inside if os.path.lexists(inside) else argument
        if not self.places:
            return argument
        pattern = "|".join(re.escape(destination) for destination, _ in self.places)
        sources = dict(self.places)
        return re.sub(rf"(?<![\w./-])({pattern})(?=/|[^\w./-]|\Z)", lambda found: sources[found.group(1)], argument)

    def map_args(self, args: Sequence[str], env: Iterable[str]) -> list[str]:
        """A command; a program without a slash is looked for in the image along PATH."""
        first = args[0]
        if "/" not in first:
            search = next((entry[5:] for entry in env if entry.startswith("PATH=")), "")
            found = [f"{folder}/{first}" for folder in search.split(":") if os.path.lexists(f"{self.rootfs}{folder}/{first}")]
            first = found[0] if found else first
        return [self.map_argument(argument) for argument in (first, *args[1:])]

    def _mount_of(self, path: str) -> str | None:
        return next((one for one, _ in self.places if path == one or path.startswith(f"{one}/")), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedContainer:
    """What replaces a container's namespaces."""

    paths: PathMap
    mountinfo: str


def map_container(config: oci.Config, *, rootfs: Path, scratch: Path) -> MappedContainer:
    """Checks the mounts as runc does and finds their places; a tmpfs is a folder below `scratch`.

    Raises:
        ProcessRefused: a source is missing.
    """
    places: dict[str, str] = {}
    lines = [_line(1, 0, "/", *_host_place(str(rootfs)), "ext4")]
    for mount in config["mounts"]:
        destination = mount["destination"]
        number = len(lines) + 1
        inside = runtime_init.resolve_in_root(str(rootfs), destination).removeprefix(str(rootfs)) or "/"
        parent = host_mounts.visible_mount(host_mounts.parse_mountinfo("".join(lines)), inside)
        above = parent.mount_id if parent is not None else 1
        if mount["type"] == "tmpfs" and not destination.startswith(_KERNELS_OWN):
            folder = _scratch_folder(scratch / str(number), mount["options"])
            places[destination] = str(folder)
            lines.append(_line(number, above, inside, f"0:{1000 + number}", "/", "tmpfs"))
        elif _is_bind(mount):
            source = _existing_source(mount)
            places[destination] = source
            lines.append(_line(number, above, inside, *_host_place(source), "ext4"))
        else:
            lines.append(_line(number, above, inside, f"0:{1000 + number}", "/", mount["type"]))
    deeper_first = sorted(places.items(), key=lambda place: -len(place[0]))
    return MappedContainer(paths=PathMap(rootfs=rootfs, places=tuple(deeper_first)), mountinfo="".join(lines))


def _is_bind(mount: Mapping[str, Any]) -> bool:
    if mount["type"] == "bind" or "bind" in mount["options"] or "rbind" in mount["options"]:
        return True
    if not mount["type"]:
        raise ProcessRefused(_refusal(mount, "no such device"))
    return False


def _existing_source(mount: Mapping[str, Any]) -> str:
    source: str = mount["source"]
    try:
        os.stat(source)
    except OSError as exc:
        raise ProcessRefused(_refusal(mount, runtime_init.reason_of(exc))) from exc
    return source


def _refusal(mount: Mapping[str, Any], reason: str) -> str:
    return f'error mounting "{mount["source"]}" to rootfs at "{mount["destination"]}": {reason}'


def _scratch_folder(folder: Path, options: Sequence[str]) -> Path:
    mode = next((option[5:] for option in options if option.startswith("mode=")), "1777")
    folder.mkdir(parents=True)
    folder.chmod(stat.S_IMODE(int(mode, 8)))
    return folder


def _host_place(path: str) -> tuple[str, str]:
    """The file system's device number, and the path within it, of a path of the host."""
    real = os.path.realpath(path)
    entry = host_mounts.visible_mount(host_mounts.parse_mountinfo(Path("/proc/self/mountinfo").read_text()), real)
    if entry is None:
        return "0:0", real
    below = os.path.relpath(real, entry.mount_point)
    root = entry.root if below == "." else os.path.join(entry.root, below)
    return entry.device, root


def _line(number: int, parent: int, destination: str, device: str, root: str, kind: str) -> str:
    return f"{number} {parent} {device} {_escape(root)} {_escape(destination)} rw,relatime - {kind} none rw\n"


def _escape(path: str) -> str:
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\" else letter for letter in path)
