"""The cgroup below which one cluster's kubelet keeps its pods, in every hierarchy, and its end with all that is in it."""

from __future__ import annotations

from vgpu_testkit import cgroup_trees

_EMPTY_WITHIN_S = 10.0


def make(name: str) -> None:
    """Makes the cgroup at the top of each hierarchy; bears repetition."""
    for root in cgroup_trees.roots():
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
    cgroup_trees.remove([root / name for root in cgroup_trees.roots()], within_s=_EMPTY_WITHIN_S)


def exists(name: str) -> bool:
    """Whether any hierarchy has it."""
    return any((root / name).exists() for root in cgroup_trees.roots())
