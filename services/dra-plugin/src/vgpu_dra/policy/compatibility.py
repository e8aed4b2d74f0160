"""How the library tells its container's processes from others, for claims that are prepared from now on. Pure."""

from __future__ import annotations

from vgpu_dra.feature_gates import FeatureGates, Gate
from vgpu_state.container_abi import CompatibilityMode


def compatibility_mode(gates: FeatureGates, *, has_only_cgroup_v2: bool) -> CompatibilityMode:
    """By the list that registry records, where the gate is on; else by cgroups, as the node has them.

    A hybrid node counts as v1: there the runtime puts containers into the v1 hierarchies, and the unified tree tells none from
    another.
    """
    if gates.is_on(Gate.CLIENT_MODE):
        return CompatibilityMode.CLIENT
    return CompatibilityMode.CGROUP_V2 if has_only_cgroup_v2 else CompatibilityMode.CGROUP_V1
