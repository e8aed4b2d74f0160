"""How the library tells its container's processes from others: by registry's list, else by the cgroups that the node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_daemon import procfs
from vgpu_dra.feature_gates import parse_feature_gates
from vgpu_dra.policy.compatibility import compatibility_mode

UNIFIED = ("cgroup.controllers", "cgroup.procs")
HYBRID = ("memory/cgroup.procs", "unified/cgroup.controllers")
V1 = ("memory/cgroup.procs", "cpu,cpuacct/cgroup.procs")


@pytest.mark.parametrize(
    ("files", "gates", "value"),
    [
        (UNIFIED, "", 236),
        (V1, "", 236),
        (UNIFIED, "DevicePluginClientMode=false", 102),
        (HYBRID, "DevicePluginClientMode=false", 101),
        (V1, "DevicePluginClientMode=false", 101),
        ((), "DevicePluginClientMode=false", 101),
    ],
)
def test_mode_follows_the_gate_then_the_nodes_cgroups(files: tuple[str, ...], gates: str, value: int, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    mode = compatibility_mode(parse_feature_gates(gates), has_only_cgroup_v2=procfs.has_only_cgroup_v2(tmp_path))

    assert mode == value
