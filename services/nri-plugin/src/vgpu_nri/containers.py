"""Containers and their adjustments as this process sees them: values between the runtime's messages and dra-plugin's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from vgpu_state.container_abi import Mount


class ContainerState(Enum):
    """Where a container is in its life, by NRI's numbers."""

    UNKNOWN = 0  # what CreateContainer says: the container is in no store yet
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class Stage(StrEnum):
    """How far a container is gone. `removed` includes `stopped`."""

    STOPPED = "stopped"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    uid: str = ""
    namespace: str = ""
    name: str = ""
    runtime_handler: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device node of the container. `type` is "c", "b" or "p"."""

    path: str
    type: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """A device cgroup rule. A number is None where the rule holds for all of them."""

    is_allowed: bool
    type: str
    major: int | None
    minor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuContainer:
    """A container that shows at least one grant. Nothing of it is checked: dra-plugin does that.

    `grants` are (key, value) as its env has them; a value holds a secret and is in no repr.
    """

    runtime_id: str
    name: str
    pod: Pod
    grants: tuple[tuple[str, str], ...] = field(repr=False)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    device_rules: tuple[DeviceRule, ...] = ()
    cgroup_path: str = ""
    pid: int = 0
    state: ContainerState = ContainerState.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a call of the runtime is about. `vgpu` is None where the env shows no grant, or was left out by the runtime."""

    runtime_id: str
    vgpu: VgpuContainer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What a container gets from its partition, and which partition that is."""

    mounts: tuple[Mount, ...]
    env: tuple[tuple[str, str], ...]
    claim_uid: str
    partition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronizeReport:
    """What dra-plugin found when it compared the live containers with its bindings, as runtime ids."""

    unbound: tuple[str, ...]
    drifted: tuple[str, ...]
    released: tuple[str, ...]
