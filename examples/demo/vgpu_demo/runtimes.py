"""Which container runtime the demo uses: real containerd where it can run, else the stand-in, and it says which."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vgpu_testkit import image, oci
from vgpu_testkit.containerd import Containerd, find_containerds
from vgpu_testkit.cri import Cri
from vgpu_testkit.node import Node
from vgpu_testkit.pods import ContainerSpec, ExecResult, Pod, PodSpec
from vgpu_testkit.runtime import StandInRuntime

IMAGE = "localhost/vgpu/demo:1"
STAND_IN = "stand-in"


class BadChoice(Exception):
    """Raised when DEMO_RUNTIME names a runtime that is not there."""


class Runtime(Protocol):
    """What the demo asks of a container runtime, as kubelet does."""

    async def run_pod(self, spec: PodSpec) -> Pod: ...
    async def create_container(self, pod: Pod, spec: ContainerSpec) -> str: ...
    async def start(self, container_id: str) -> None: ...
    async def exec(self, container_id: str, *command: str) -> ExecResult: ...
    async def stop(self, container_id: str) -> None: ...
    async def remove(self, container_id: str) -> None: ...
    async def remove_pod(self, pod: Pod) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A runtime that runs, and where the services find it and its processes."""

    runtime: Runtime
    version: str
    isolation: str
    nri_socket: Path
    proc_root: Path
    cgroup_root: Path


def choose(wanted: str) -> str:
    """The runtime to use: "containerd-<release>" or "stand-in". `wanted` "" takes the best there is.

    Raises:
        BadChoice: what is wanted is not installed or needs root.
    """
    installed = [f"containerd-{release}" for release in find_containerds()] if os.geteuid() == 0 else []
    if not wanted:
        return next((c for c in ("containerd-2", "containerd-1.7", "containerd-path") if c in installed), STAND_IN)
    if wanted == "containerd" and installed:
        return choose("")
    if wanted != STAND_IN and wanted not in installed:
        known = ", ".join([*installed, STAND_IN])
        raise BadChoice(f"DEMO_RUNTIME={wanted} cannot run here; there is {known} (containerd needs root and `make containerd`)")
    return wanted


@asynccontextmanager
async def open_stage(choice: str, root: Path, node: Node, native: Path) -> AsyncIterator[Stage]:
    """The chosen runtime, running, with an image that holds the program which prints limits; ended with the context."""
    programs = {"/bin/read-limits": native / "read-limits"}
    if choice == STAND_IN:
        nri_socket = root / "runtime" / "nri.sock"
        stand_in = StandInRuntime(
            root / "runtime", cdi_dir=node.cdi_dir, nri_socket=nri_socket, node_lookup=oci.numbers_of_stand_in
        )
        stand_in.images.add(IMAGE, files=programs)
        async with stand_in as runtime:
            yield Stage(
                runtime=runtime,
                version=await runtime.version(),
                isolation=runtime.isolation,
                nri_socket=nri_socket,
                proc_root=runtime.proc_root,
                cgroup_root=runtime.cgroup_root,
            )
        return
    containerd = Containerd(find_containerds()[choice.removeprefix("containerd-")], root / "ctd", cdi_dir=node.cdi_dir)
    stop: Callable[[], None] = containerd.stop
    try:
        containerd.start()
        archive = root / "image.tar"
        image.write_image(archive, name=IMAGE, files=programs)
        containerd.import_image(archive)
        async with Cri(containerd.socket) as cri:
            yield Stage(
                runtime=cri,
                version=containerd.version_text,
                isolation="runc",
                nri_socket=containerd.nri_socket,
                proc_root=Path("/proc"),
                cgroup_root=Path("/sys/fs/cgroup"),
            )
    finally:
        stop()
