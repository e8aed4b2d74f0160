"""/proc/<pid>/mountinfo → what a process really finds at a path.

Mounts stack and hide each other; only a walk from the root, as the kernel does it, tells which one is on top. Does not read
files. Source: proc(5), mountinfo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One line: mount `mount_id` on top of `parent_id`, showing `root` of the file system `device` at `mount_point`."""

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: str
    fs_type: str

    @property
    def content(self) -> tuple[str, str]:
        """What is mounted: the file system's device number and the path within it."""
        return self.device, self.root


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    """The entries in the kernel's order; a line that is none is left out."""
    # Not splitlines(): the kernel escapes the line feed only, and a volume's path may hold any other separator.
    return tuple(entry for line in text.split("\n") if (entry := _parse_line(line)) is not None)


def visible_mount(entries: Iterable[MountEntry], path: str) -> MountEntry | None:
    """The mount that a process finds when it opens `path`, an absolute path without links; None without a root mount."""
    known = {e.mount_id for e in entries}
    by_place: dict[tuple[int, str], MountEntry] = {}
    current: MountEntry | None = None
    for entry in entries:
        if entry.parent_id in known and entry.parent_id != entry.mount_id:
            by_place[entry.parent_id, entry.mount_point] = entry
        elif entry.mount_point == "/":
            current = entry
    if current is None:
        return None
    for place in [str(p) for p in reversed(PurePosixPath(path).parents)] + [path]:
        while (upper := by_place.get((current.mount_id, place))) is not None:
            current = upper
    return current


def _parse_line(line: str) -> MountEntry | None:
    fields = line.split(" ")
    if len(fields) < 10 or "-" not in fields[6:]:
        return None
    separator = fields.index("-", 6)
    if not (fields[0].isdigit() and fields[1].isdigit()) or separator + 1 >= len(fields):
        return None
    return MountEntry(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        device=fields[2],
        root=_unescape(fields[3]),
        mount_point=_unescape(fields[4]),
        fs_type=fields[separator + 1],
    )


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda m: chr(int(m.group(1), 8)), text)
