"""Ends a process before its k-th file-system call: the test's side of tests/native/crash_point.c."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CONTROL_BYTES = 1 << 18
_HEADER = struct.Struct("=IIII")  # is_armed, kill_at, count, log_bytes
_NEVER = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A counted call: the C function's name and the path that it changes."""

    name: str
    path: str


class CrashControl:
    """One control file, mapped here and in the process that is preloaded with the library."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(_CONTROL_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL_BYTES)

    def environment(self, native: Path, roots: Iterable[Path]) -> dict[str, str]:
        """The variables that make a process obey this control, for calls below `roots`."""
        return {
            "LD_PRELOAD": str(native / "libcrash_point.so"),
            "VGPU_CRASH_CONTROL": str(self._path),
            "VGPU_CRASH_ROOTS": ":".join(os.path.realpath(root) for root in roots),
        }

    def count(self) -> None:
        """From now on calls are counted, none is the last."""
        self._arm(_NEVER)

    def kill_before(self, number: int) -> None:
        """From now on calls are counted, and SIGKILL comes before call `number`, the first being 1."""
        assert number > 0
        self._arm(number)

    def disarm(self) -> list[Call]:
        """The calls that were counted, in order; the one before which the process was killed is the last."""
        self._map[:4] = struct.pack("=I", 0)
        _, _, _, log_bytes = _HEADER.unpack_from(self._map)
        lines = self._map[_HEADER.size : _HEADER.size + log_bytes].decode().splitlines()
        return [Call(*line.split(" ", 1)) for line in lines]

    def _arm(self, kill_at: int) -> None:
        _HEADER.pack_into(self._map, 0, 0, kill_at, 0, 0)
        self._map[:4] = struct.pack("=I", 1)
