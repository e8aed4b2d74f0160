"""Lives of pods and containers that a runtime tells an NRI plugin of, each on a connection of its own.

Owns what is created and how the plugin answers. `record` keeps what passes as fixtures; a test plays the same again
and holds the fixtures against it. All names are fixed, so that two recordings differ in ids, pids and times only.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpclib.exceptions import GRPCError

from vgpu_proto import nri
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.cri import Cri
from vgpu_testkit.nri_frames import Request, Response
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec
from vgpu_testkit.recording import Chunk
from vgpu_testkit.recording_plugin import RecordingPlugin

CLAIM_UID = "5f0c2b1e-9d0a-4c53-8a7e-3b1f6a2d9c10"
GRANT = f"VGPU_GRANT_0123456789abcdef={CLAIM_UID}/gpu/00112233445566778899aabbccddeeff"
CDI_DEVICE = "k8s.manager.nvidia.com/claim=5f0c2b1e-gpu-0"
_POD_UIDS = tuple(f"0b7e4a1c-2f63-4d0e-9b5a-00000000000{number}" for number in range(4))

# The numbers of the NVIDIA driver's nodes; no driver is needed to have the nodes.
_DEVICES = {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (511, 0)}

# CREATE_CONTAINER, START_CONTAINER, STOP_CONTAINER, REMOVE_CONTAINER; and all that NRI 0.6 knows.
_PLUGINS_EVENTS = 0x0008 | 0x0020 | 0x0200 | 0x0400
_ALL_EVENTS = 0x07FF


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a scenario plays on; `set_stage` makes it."""

    containerd: Containerd
    cri: Cri
    manager: Path

    def plugin(self, *, events: int = _PLUGINS_EVENTS, **answers: Response) -> RecordingPlugin:
        """A plugin that answers the named methods, or events, as given and all others emptily."""
        configured = Response(payload=nri.ConfigureResponse(events=events).SerializeToString())

        def answer(request: Request) -> Response:
            what = request.method
            if what == "StateChange":
                what = nri.Event.Name(nri.StateChangeEvent.FromString(request.payload).event)
            return ({"Configure": configured} | answers).get(what, Response())

        return RecordingPlugin(self.containerd.nri_socket, answer=answer, name="manager.nvidia.com")

    async def pod(self, number: int) -> Pod:
        """The pod of that number, 0 to 3."""
        return await self.cri.run_pod(PodSpec(name=f"pod-{number}", namespace="team-a", uid=_POD_UIDS[number]))


def set_stage(containerd: Containerd, cri: Cri) -> Stage:
    """Lays out, below containerd's folder, what a node has for the claim, and the claim's CDI file."""
    manager = containerd.root / "manager"
    for folder in ("config", "registry", ".host_proc", "watcher", "driver"):
        (manager / "skeleton" / folder).mkdir(parents=True, exist_ok=True)
    (manager / "skeleton/driver/libvgpu-control.so").touch()
    (manager / "registry").mkdir(exist_ok=True)
    (manager / "libvgpu-control.so.1").touch()
    (manager / "ld.so.preload").touch()
    _partition_config(manager).mkdir(parents=True, exist_ok=True)
    nodes = containerd.root / "dev"
    nodes.mkdir(exist_ok=True)
    for path, (major, minor) in _DEVICES.items():
        with contextlib.suppress(FileExistsError):
            os.mknod(nodes / Path(path).name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    (containerd.cdi_dir / "claim.json").write_text(_cdi_spec(manager, nodes))
    return Stage(containerd=containerd, cri=cri, manager=manager)


def vgpu_container() -> ContainerSpec:
    """A container that was given a slice of GPU 0."""
    return ContainerSpec(name="train", cdi_devices=(CDI_DEVICE,), env={"BATCH": "32"})


def foreign_container(name: str = "web") -> ContainerSpec:
    """A container without a GPU."""
    return ContainerSpec(name=name, env={"PORT": "8080"})


async def registration(stage: Stage) -> tuple[Chunk, ...]:
    """RegisterPlugin, Configure, and a Synchronize of an empty node."""
    async with stage.plugin() as plugin:
        pass
    return plugin.chunks


async def synchronize(stage: Stage) -> tuple[Chunk, ...]:
    """A Synchronize of three containers in three pods: one runs with its slice of a GPU, one runs, one was created."""
    async with stage.plugin(CreateContainer=Response(payload=_adjustment(stage))):
        await stage.cri.run_container(await stage.pod(0), vgpu_container())
    await stage.cri.run_container(await stage.pod(1), foreign_container())
    await stage.cri.create_container(await stage.pod(2), foreign_container("cache"))
    async with stage.plugin() as plugin:
        pass
    return plugin.chunks


async def foreign(stage: Stage) -> tuple[Chunk, ...]:
    """A container without a GPU is created, started, stopped and removed."""
    async with stage.plugin() as plugin:
        await _live(stage, plugin, await stage.pod(0), foreign_container())
    return plugin.chunks


async def all_events(stage: Stage) -> tuple[Chunk, ...]:
    """The life of a pod and its container as a plugin sees it that asks for every event."""
    async with stage.plugin(events=_ALL_EVENTS) as plugin:
        pod = await stage.pod(0)
        await _live(stage, plugin, pod, foreign_container())
        await stage.cri.remove_pod(pod)
        await plugin.seen("REMOVE_POD_SANDBOX")
    return plugin.chunks


async def vgpu(stage: Stage) -> tuple[Chunk, ...]:
    """A container with a slice of a GPU gets four mounts and five variables, starts, stops and is removed."""
    async with stage.plugin(CreateContainer=Response(payload=_adjustment(stage))) as plugin:
        await _live(stage, plugin, await stage.pod(0), vgpu_container())
    return plugin.chunks


async def refused_create(stage: Stage) -> tuple[Chunk, ...]:
    """CreateContainer is answered with an error; the runtime then stops and removes what it never had."""
    refusal = Response(code=9, message=f"request gpu of claim {CLAIM_UID} is held by another container")
    async with stage.plugin(CreateContainer=refusal) as plugin:
        pod = await stage.pod(0)
        await _must_fail(stage.cri.create_container(pod, vgpu_container()), refusal.message)
        await plugin.seen("REMOVE_CONTAINER")
    return plugin.chunks


async def refused_start(stage: Stage) -> tuple[Chunk, ...]:
    """START_CONTAINER is answered with an error; the container is then removed."""
    refusal = Response(code=9, message="a volume lies on /etc/vgpu-manager/config")
    adjusted = Response(payload=_adjustment(stage))
    async with stage.plugin(CreateContainer=adjusted, START_CONTAINER=refusal) as plugin:
        container = await stage.cri.create_container(await stage.pod(0), vgpu_container())
        await _must_fail(stage.cri.start(container), refusal.message)
        await stage.cri.remove(container)
        await plugin.seen("REMOVE_CONTAINER")
    return plugin.chunks


SCENARIOS: Mapping[str, Callable[[Stage], Awaitable[tuple[Chunk, ...]]]] = {
    "registration": registration,
    "synchronize": synchronize,
    "foreign": foreign,
    "all-events": all_events,
    "vgpu": vgpu,
    "refused-create": refused_create,
    "refused-start": refused_start,
}


async def _live(stage: Stage, plugin: RecordingPlugin, pod: Pod, spec: ContainerSpec) -> None:
    container = await stage.cri.run_container(pod, spec)
    await stage.cri.stop(container)
    await plugin.seen("StopContainer", container)
    await stage.cri.remove(container)
    await plugin.seen("REMOVE_CONTAINER", container)


async def _must_fail(call: Awaitable[object], reason: str) -> None:
    try:
        await call
    except GRPCError as refusal:
        if reason in str(refusal.message):
            return
        raise
    raise AssertionError(f"not refused: {reason}")


def _partition_config(manager: Path) -> Path:
    return manager / "claims" / CLAIM_UID / f"{_POD_UIDS[0]}_train" / "config"


def _adjustment(stage: Stage) -> bytes:
    """The folder of the limits in place of the mount that cannot be, the scratch folders, and the container's names."""
    scratch = ["size=2m", "nr_inodes=64", "mode=0777", "nosuid", "nodev", "noexec"]
    env = {
        "VGPU_POD_NAME": "pod-0",
        "VGPU_POD_NAMESPACE": "team-a",
        "VGPU_POD_UID": _POD_UIDS[0],
        "VGPU_CONTAINER_NAME": "train",
        "MANAGER_CLIENT_REGISTER_UUID": "",
    }
    adjustment = nri.ContainerAdjustment(
        mounts=[
            nri.Mount(
                destination="/etc/vgpu-manager/config",
                type="bind",
                source=str(_partition_config(stage.manager)),
                options=["bind", "ro", "nosuid", "nodev", "noexec"],
            ),
            *(
                nri.Mount(destination=f"/tmp/{name}", type="tmpfs", source="tmpfs", options=scratch)
                for name in (".vgpu_lock", ".vmem_node", ".sm_node")
            ),
        ],
        env=[nri.KeyValue(key=key, value=value) for key, value in env.items()],
    )
    return nri.CreateContainerResponse(adjust=adjustment).SerializeToString()


def _cdi_spec(manager: Path, nodes: Path) -> str:
    """The one device of a claim whose partition comes through NRI: the last mount's source never exists."""
    mounts = {
        "/etc/vgpu-manager": manager / "skeleton",
        "/etc/vgpu-manager/registry": manager / "registry",
        "/etc/vgpu-manager/driver/libvgpu-control.so": manager / "libvgpu-control.so.1",
        "/etc/ld.so.preload": manager / "ld.so.preload",
        "/etc/vgpu-manager/config": manager / "claims" / CLAIM_UID / "created-without-nri",
    }
    edits = {
        "env": [GRANT, f"MANAGER_VGPU_CLAIM_UID={CLAIM_UID}"],
        "deviceNodes": [{"path": path, "hostPath": str(nodes / Path(path).name)} for path in _DEVICES],
        "mounts": [
            {"hostPath": str(source), "containerPath": target, "options": ["bind", "ro", "nosuid", "nodev"]}
            for target, source in mounts.items()
        ],
    }
    kind, _, device = CDI_DEVICE.partition("=")
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]})
