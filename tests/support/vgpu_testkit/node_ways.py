"""The ways in which a node may assign partitions, with NRI or without, in client mode or by cgroups; a node is put into one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vgpu_testkit.containerd import Containerd
from vgpu_testkit.daemons import Daemon, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`has_nri`: the runtime has it and nri-plugin runs. `uses_nri`: dra-plugin may assign through it (gate NRISupport)."""

    has_nri: bool
    uses_nri: bool
    is_client_mode: bool

    @property
    def is_eager(self) -> bool:
        """Whether partitions are made at Prepare."""
        return not (self.has_nri and self.uses_nri)

    @property
    def is_registered_by_uuid(self) -> bool:
        """Whether a container registers with the UUID of its partition."""
        return self.is_eager and self.is_client_mode

    def __str__(self) -> str:
        through = "without NRI" if not self.has_nri else "with NRI" if self.uses_nri else "beside NRI"
        return f"{through}, {'client' if self.is_client_mode else 'cgroup'} mode"


WITH_NRI = Way(has_nri=True, uses_nri=True, is_client_mode=True)
WITHOUT_NRI = Way(has_nri=False, uses_nri=False, is_client_mode=True)
BESIDE_NRI = Way(has_nri=True, uses_nri=False, is_client_mode=True)
"""NRI is there, and tells of containers whose partitions were made without it."""

ALL = tuple(replace(way, is_client_mode=mode) for way in (WITH_NRI, BESIDE_NRI, WITHOUT_NRI) for mode in (True, False))


def set_up(stack: Stack, containerd: Containerd, way: Way) -> Stack:
    """The services of a node without pods, of which none runs; their next start finds the node as that way has it."""
    stack.stop()
    if containerd.nri is not way.has_nri:
        containerd.nri = way.has_nri
        containerd.restart()
    set_gates(stack.dra, way)
    return replace(stack, has_nri=way.has_nri)


def set_gates(dra: Daemon, way: Way) -> None:
    """The feature gates of dra-plugin's next start."""
    gates = {"NRISupport": way.uses_nri, "DevicePluginClientMode": way.is_client_mode}
    dra.environment["VGPU_FEATURE_GATES"] = ",".join(f"{gate}={str(is_on).lower()}" for gate, is_on in gates.items())
