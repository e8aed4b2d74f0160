"""The trees of cgroups of this host, and the end of a cgroup with all that is in it.

Knows that cgroup v1 has a tree per controller. Knows no pod.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_POLL_S = 0.02


def roots() -> list[Path]:
    """The root itself where it is cgroup v2; each controller's tree where it is v1 or hybrid."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [child for child in _ROOT.iterdir() if child.is_dir() and not child.is_symlink()]


def remove(cgroups: Iterable[Path], *, within_s: float) -> None:
    """Ends every process in these cgroups and removes them with what is below; bears repetition.

    Raises:
        TimeoutError: a process did not end.
    """
    deadline = time.monotonic() + within_s
    for cgroup in cgroups:
        while cgroup.exists():
            _end_processes(cgroup)
            _remove_tree(cgroup)
            if cgroup.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{cgroup} still holds processes after {within_s} s")
                time.sleep(_POLL_S)


def _end_processes(cgroup: Path) -> None:
    for listing in cgroup.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _remove_tree(cgroup: Path) -> None:
    for folder, _, _ in os.walk(cgroup, topdown=False):
        # Busy until the kernel has buried the last process; the caller looks again.
        with contextlib.suppress(OSError):
            os.rmdir(folder)
