"""How a stand-in container comes to be: its configuration, CDI's edits, the plugins' adjustments, its root folder.

Source: containerd internal/cri/server/container_create.go and its Linux part, for the order of these steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpclib.const import Status

from vgpu_proto import cri as wire
from vgpu_proto import nri
from vgpu_testkit import cdi_apply, cri_config, oci, runtime_container, runtime_refusals
from vgpu_testkit.cri_config import KubeletFolders
from vgpu_testkit.nri_container import ContainerView
from vgpu_testkit.nri_plugin_link import PluginRefused
from vgpu_testkit.nri_runtime import NriRuntime
from vgpu_testkit.pods import ContainerSpec, Pod
from vgpu_testkit.runtime_container import Container
from vgpu_testkit.runtime_images import Images
from vgpu_testkit.runtime_refusals import RuntimeRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMaker:
    """Makes containers below `root`; `cdi_versions` are those that the runtime's CDI library knows."""

    root: Path
    kubelet: KubeletFolders
    images: Images
    nri: NriRuntime
    cdi_dir: Path
    cdi_versions: tuple[str, ...]
    node_lookup: oci.NodeLookup

    async def make(self, pod: Pod, spec: ContainerSpec, *, present: Iterable[Container]) -> Container:
        """A container that is ready to be started.

        Raises:
            RuntimeRefused: it cannot be made as asked; nothing is left of it, and its name is free again.
        """
        self._check_name(pod, spec, present)
        container_id = secrets.token_hex(32)
        bundle = self.root / "containers" / container_id
        try:
            await asyncio.to_thread(self.images.unpack, spec.image, bundle / "rootfs")
            container = self._configured(pod, spec, bundle)
            await self._adjust(container)
        except Exception as exc:  # whatever stopped it: no files may stay
            runtime_container.remove_files(bundle)
            raise runtime_refusals.of_create(exc) from exc
        (bundle / "config.json").write_text(json.dumps(container.config, indent=1))
        return container

    def make_sandbox(self, pod: Pod) -> None:
        """Makes the files that a pod's containers share."""
        files = self._sandbox(pod)
        files.shm.mkdir(parents=True)
        files.shm.chmod(0o1777)
        files.hostname.write_text(f"{os.uname().nodename}\n")
        files.resolv_conf.write_text("nameserver 127.0.0.1\n")

    def _sandbox(self, pod: Pod) -> oci.SandboxFiles:
        folder = self.root / "sandboxes" / pod.id
        return oci.SandboxFiles(hostname=folder / "hostname", resolv_conf=folder / "resolv.conf", shm=folder / "shm")

    def _check_name(self, pod: Pod, spec: ContainerSpec, present: Iterable[Container]) -> None:
        for other in present:
            if other.pod.id == pod.id and (other.spec.name, other.spec.attempt) == (spec.name, spec.attempt):
                full = f"{spec.name}_{pod.spec.name}_{pod.spec.namespace}_{pod.spec.uid}_{spec.attempt}"
                text = f'failed to reserve container name "{full}": name "{full}" is reserved for "{other.id}"'
                raise RuntimeRefused(Status.UNKNOWN, text)

    def _configured(self, pod: Pod, spec: ContainerSpec, bundle: Path) -> Container:
        asked = cri_config.container_config(self.kubelet, pod.spec, spec)
        for mount in asked.mounts:
            mount.host_path = _host_folder(mount)
        config = oci.new_config(pod, asked, self._sandbox(pod))
        folder = cdi_apply.read_folder(self.cdi_dir, versions=self.cdi_versions)
        cdi_apply.inject(config, folder, spec.cdi_devices, lookup=self.node_lookup)
        labels = {**asked.labels, "io.cri-containerd.kind": "container"}
        return Container(id=bundle.name, pod=pod, spec=spec, labels=labels, config=config, bundle=bundle)

    async def _adjust(self, container: Container) -> None:
        try:
            await self.nri.create_container(container.view())
        except PluginRefused:
            await self._undo(container)
            raise

    async def _undo(self, container: Container) -> None:
        """What plugins are told of a container that is not made after all: it is in no store, so it has no labels."""
        view = container.view()
        bare = ContainerView(id=view.id, pod=view.pod, name=view.name, state=view.state, pid=0, labels={}, config=view.config)
        await self.nri.event(nri.STOP_CONTAINER, pod=view.pod, view=bare)
        await self.nri.event(nri.REMOVE_CONTAINER, pod=view.pod, view=bare)


def _host_folder(mount: wire.Mount) -> str:
    """A requested mount's source without links; containerd makes a folder where there is nothing."""
    if not os.path.exists(mount.host_path):
        os.makedirs(mount.host_path)
    return os.path.realpath(mount.host_path)
