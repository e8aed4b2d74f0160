"""Ends a process before its k-th file-system call, or makes that call fail: the test's side of tests/native/crash_point.c."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CONTROL_BYTES = 1 << 18
_HEADER = struct.Struct("=IIIIII")  # is_armed, stop_at, error, lasting, count, log_bytes
_NEVER = 0
_KILLED = 0


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
        self._arm(_NEVER, _KILLED)

    def kill_before(self, number: int) -> None:
        """From now on calls are counted, and SIGKILL comes before call `number`, the first being 1."""
        assert number > 0
        self._arm(number, _KILLED)

    def fail(self, number: int, error: int) -> None:
        """From now on calls are counted, and call `number` fails with this errno."""
        assert number > 0
        self._arm(number, error)

    def fail_from(self, number: int, error: int) -> None:
        """From now on calls are counted, and from call `number` on all that need room on the disk fail with this errno."""
        assert number > 0
        self._arm(number, error, lasting=1)

    def fail_all(self, error: int) -> None:
        """From now on calls are counted and fail with this errno."""
        self._arm(1, error, lasting=2)

    def disarm(self) -> list[Call]:
        """The calls that were counted, in order; one before which the process was killed is the last."""
        self._map[:4] = struct.pack("=I", 0)
        *_, log_bytes = _HEADER.unpack_from(self._map)
        lines = self._map[_HEADER.size : _HEADER.size + log_bytes].decode().splitlines()
        return [Call(*line.split(" ", 1)) for line in lines]

    def _arm(self, stop_at: int, error: int, *, lasting: int = 0) -> None:
        _HEADER.pack_into(self._map, 0, 0, stop_at, error, lasting, 0, 0)
        self._map[:4] = struct.pack("=I", 1)
