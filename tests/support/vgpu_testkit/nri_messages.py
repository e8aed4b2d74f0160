"""Containers as containerd shows them to an NRI plugin, for tests of one process."""

from __future__ import annotations

from vgpu_proto import nri

CLAIM = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"
POD_UID = "0b7e4a1c-2f63-4d0e-9b5a-000000000000"
NONCE = "00112233445566778899aabbccddeeff"
GRANT = f"VGPU_GRANT_0123456789abcdef={CLAIM}/gpu/{NONCE}"
ID = "a" * 64


def pod(sandbox_id: str = "sandbox-0", *, name: str = "train-0") -> nri.PodSandbox:
    return nri.PodSandbox(id=sandbox_id, name=name, uid=POD_UID, namespace="team-a", runtime_handler="nvidia")


def container(runtime_id: str = ID, *, env: tuple[str, ...] = (GRANT,), pid: int = 0, state: int = 0) -> nri.Container:
    """Container `train`; without a grant in `env` it is not ours."""
    return nri.Container(
        id=runtime_id,
        pod_sandbox_id="sandbox-0",
        name="train",
        state=state,  # type: ignore[arg-type]  # the stub wants the enum, the wire any number
        env=["PATH=/bin", *env],
        mounts=[nri.Mount(destination="/data", source="/srv/data", type="bind", options=["rbind", "rw"])],
        linux=nri.LinuxContainer(
            devices=[nri.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=0)],
            resources=nri.LinuxResources(devices=[nri.LinuxDeviceCgroup(allow=False, access="rwm")]),
            cgroups_path=f"/kubepods/pod{POD_UID}/{runtime_id}",
        ),
        pid=pid,
    )


def create(runtime_id: str = ID, *, env: tuple[str, ...] = (GRANT,)) -> nri.CreateContainerRequest:
    return nri.CreateContainerRequest(pod=pod(), container=container(runtime_id, env=env))


def start(runtime_id: str = ID, *, env: tuple[str, ...] = (GRANT,), pid: int = 4711) -> nri.StartContainerRequest:
    return nri.StartContainerRequest(pod=pod(), container=container(runtime_id, env=env, pid=pid))


def stop(runtime_id: str = ID) -> nri.StopContainerRequest:
    """As after a refused create, and when the sandbox is gone: the id, and neither env nor pod."""
    return nri.StopContainerRequest(container=nri.Container(id=runtime_id, name="train"))


def remove(runtime_id: str = ID) -> nri.RemoveContainerRequest:
    return nri.RemoveContainerRequest(container=nri.Container(id=runtime_id, name="train"))


def state_change(event: int, subject: nri.Container) -> nri.StateChangeEvent:
    return nri.StateChangeEvent(event=event, pod=pod(), container=subject)  # type: ignore[arg-type]  # as in container()
