"""The cgroups of pods as kubelet lays them out with its cgroupfs driver, and their end.

Knows the shape of the paths and that cgroup v1 has a tree per controller. Knows no runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PARENTS = ("kubepods/besteffort", "kubepods")
_EMPTY_WITHIN_S = 5.0
_POLL_S = 0.02


def parent_of(pod_uid: str) -> str:
    """The cgroup parent that kubelet gives the runtime for a BestEffort pod."""
    return f"/kubepods/besteffort/pod{pod_uid}"


def remove(pod_uid: str) -> None:
    """Ends every process in the pod's cgroup and removes the cgroup in every hierarchy; bears repetition.

    The parents go too once nothing is in them.

    Raises:
        TimeoutError: a process did not end.
    """
    pod_cgroups = [root / parent_of(pod_uid).lstrip("/") for root in _hierarchies()]
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    for pod_cgroup in pod_cgroups:
        while pod_cgroup.exists():
            _end_processes(pod_cgroup)
            _remove_tree(pod_cgroup)
            if pod_cgroup.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{pod_cgroup} still holds processes after {_EMPTY_WITHIN_S} s")
                time.sleep(_POLL_S)
    for parent in _PARENTS:
        for root in _hierarchies():
            with contextlib.suppress(OSError):
                (root / parent).rmdir()


def _hierarchies() -> list[Path]:
    """The root itself (cgroup v2) and each controller's tree (v1, hybrid)."""
    return [_ROOT, *(child for child in _ROOT.iterdir() if child.is_dir() and not child.is_symlink())]


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
