"""The cgroups of pods as kubelet lays them out with its cgroupfs driver, and their end.

Knows the shape of the paths. Knows no runtime.
"""

from __future__ import annotations

import contextlib

from vgpu_testkit import cgroup_trees

_PARENTS = ("kubepods/besteffort", "kubepods")
_EMPTY_WITHIN_S = 5.0


def parent_of(pod_uid: str) -> str:
    """The cgroup parent that kubelet gives the runtime for a BestEffort pod."""
    return f"/kubepods/besteffort/pod{pod_uid}"


def remove(pod_uid: str) -> None:
    """Ends every process in the pod's cgroup and removes the cgroup in every hierarchy; bears repetition.

    The parents go too once nothing is in them.

    Raises:
        TimeoutError: a process did not end.
    """
    roots = cgroup_trees.roots()
    cgroup_trees.remove([root / parent_of(pod_uid).lstrip("/") for root in roots], within_s=_EMPTY_WITHIN_S)
    for parent in _PARENTS:
        for root in roots:
            with contextlib.suppress(OSError):
                (root / parent).rmdir()
