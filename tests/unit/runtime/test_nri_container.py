"""What the stand-in tells a plugin has the shape of what a real containerd told one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vgpu_proto import cri as wire
from vgpu_proto import nri
from vgpu_testkit import cri_config, oci
from vgpu_testkit.cri_config import KubeletFolders
from vgpu_testkit.nri_container import ContainerView, Templates
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec
from vgpu_testkit.recording import load_recording

_ID = "c" * 64


def _recorded(line: str) -> nri.CreateContainerRequest:
    return nri.CreateContainerRequest.FromString(load_recording(f"{line}/all-events").requests("CreateContainer")[0])


def _view_like(recorded: nri.CreateContainerRequest, folder: Path) -> ContainerView:
    """A container asked for as the recorded one was."""
    pod = Pod(id=recorded.pod.id, spec=PodSpec(name=recorded.pod.name, namespace=recorded.pod.namespace, uid=recorded.pod.uid))
    spec = ContainerSpec(name=recorded.container.name, env={"PORT": "8080"})
    asked: wire.ContainerConfig = cri_config.container_config(KubeletFolders(logs=folder, pods=folder), pod.spec, spec)
    files = oci.SandboxFiles(hostname=Path("/a/hostname"), resolv_conf=Path("/a/resolv.conf"), shm=Path("/a/shm"))
    return ContainerView(
        id=recorded.container.id,
        pod=pod,
        name=spec.name,
        state=nri.CONTAINER_UNKNOWN,
        pid=0,
        labels={**asked.labels, "io.cri-containerd.kind": "container"},
        config=oci.new_config(pod, asked, files),
    )


def _without_places(request: nri.CreateContainerRequest) -> Any:
    """All of a request but what differs from machine to machine: sources of mounts, the host's name, the sandbox's pid."""
    known = nri.CreateContainerRequest()
    known.CopyFrom(request)
    known.pod.pid = 0
    for mount in known.container.mounts:
        mount.source = mount.source.rpartition("/")[2] if mount.type == "bind" else mount.source
    env = [entry for entry in known.container.env if not entry.startswith("HOSTNAME=")]
    del known.container.env[:]
    known.container.env.extend(env)
    return known


@pytest.mark.parametrize("line", ["1.7", "2"])
def test_request_for_the_recorded_container_is_the_recorded_request(line: str, tmp_path: Path) -> None:
    recorded = _recorded(line)

    made = Templates(line).create(_view_like(recorded, tmp_path))

    assert _without_places(made) == _without_places(recorded)


@pytest.mark.parametrize("line", ["1.7", "2"])
def test_fields_beyond_our_definitions_stay_as_containerd_set_them(line: str, tmp_path: Path) -> None:
    made = Templates(line).create(_view_like(_recorded(line), tmp_path))

    # LinuxContainer.namespaces, field 1 of field 11, is not in our definitions; its types are text.
    assert b"\x0a\x05mount" in made.container.linux.SerializeToString()


@pytest.mark.parametrize("line", ["1.7", "2"])
def test_recorded_events_are_all_there(line: str, tmp_path: Path) -> None:
    templates = Templates(line)
    view = _view_like(_recorded(line), tmp_path)

    for kind in (nri.RUN_POD_SANDBOX, nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX):
        event = templates.event(kind, pod=view.pod, view=None)
        assert (event.event, event.pod.id, event.HasField("container")) == (kind, view.pod.id, False)
    for kind in (nri.POST_CREATE_CONTAINER, nri.START_CONTAINER, nri.POST_START_CONTAINER, nri.REMOVE_CONTAINER):
        event = templates.event(kind, pod=view.pod, view=view)
        assert (event.event, event.container.id) == (kind, view.id)


def test_devices_and_their_rules_are_told(tmp_path: Path) -> None:
    view = _view_like(_recorded("2"), tmp_path)
    oci.put_device(view.config, {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}, "rwm")

    linux = Templates("2").container(view).linux

    assert linux.devices == [nri.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=0)]
    rule = linux.resources.devices[1]
    assert (rule.allow, rule.type, rule.major.value, rule.HasField("minor"), rule.access) == (True, "c", 195, True, "rwm")
