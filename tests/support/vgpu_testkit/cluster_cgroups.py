"""The cgroup below which one cluster's kubelet keeps its pods, in every hierarchy, and its end with all that is in it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_EMPTY_WITHIN_S = 10.0
_POLL_S = 0.02


def make(name: str) -> None:
    """Makes the cgroup at the top of each hierarchy; bears repetition."""
    for root in _hierarchies():
        cgroup = root / name
        cgroup.mkdir(exist_ok=True)
        # cpuset of cgroup v1 lets nothing in until it has both, and gives them to no child by itself.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (cgroup / setting).exists() and (root / setting).exists() and not (cgroup / setting).read_text().strip():
                (cgroup / setting).write_text((root / setting).read_text())


def remove(name: str) -> None:
    """Ends every process in the cgroup and removes it from each hierarchy; bears repetition.

    Raises:
        TimeoutError: a process did not end.
    """
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    for cgroup in (root / name for root in _hierarchies()):
        while cgroup.exists():
            _end_processes(cgroup)
            for folder, _, _ in os.walk(cgroup, topdown=False):
                # Busy until the kernel has buried the last process.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if cgroup.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{cgroup} still holds processes after {_EMPTY_WITHIN_S} s")
                time.sleep(_POLL_S)


def exists(name: str) -> bool:
    """Whether any hierarchy has it."""
    return any((root / name).exists() for root in _hierarchies())


def _hierarchies() -> list[Path]:
    """The root itself where it is cgroup v2; each controller's tree where it is v1 or hybrid."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [child for child in _ROOT.iterdir() if child.is_dir() and not child.is_symlink()]


def _end_processes(cgroup: Path) -> None:
    for listing in cgroup.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
