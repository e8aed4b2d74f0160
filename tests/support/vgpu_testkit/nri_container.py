"""OCI configurations and NRI's messages: what the runtime tells a plugin, and what it makes of the answer.

What it tells is a message that a real containerd sent, with this pod's and container's values in it: fields that our own
definitions do not have stay as containerd set them. Source: containerd/nri pkg/adaptation/result.go, pkg/runtime-tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from vgpu_proto import nri
from vgpu_testkit import oci
from vgpu_testkit.pod_cgroups import parent_of
from vgpu_testkit.pods import Pod
from vgpu_testkit.recording import Direction, load_recording

# The recordings, by line of releases.
LINES = ("1.7", "2")


class Conflict(ValueError):
    """Raised when two plugins, or one twice, set the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """A container as NRI describes it; no labels once it is in no store."""

    id: str
    pod: Pod
    name: str
    state: nri.ContainerState
    pid: int
    labels: Mapping[str, str]
    config: oci.Config

    @property
    def cgroups_path(self) -> str:
        """Of the cgroupfs driver."""
        return self.pod.cgroup_of(self.id)


class Templates:
    """Messages that containerd of one line of releases sent."""

    def __init__(self, line: str) -> None:
        calls = [call for call in load_recording(f"{line}/all-events").calls() if call.direction is Direction.IN]
        payloads = {call.request.method: call.request.payload for call in calls if call.request.method != "StateChange"}
        self.configure = nri.ConfigureRequest.FromString(payloads["Configure"])
        self._create = nri.CreateContainerRequest.FromString(payloads["CreateContainer"])
        self._events = {
            event.event: event
            for event in (nri.StateChangeEvent.FromString(c.request.payload) for c in calls if c.request.method == "StateChange")
        }
        # NRI 0.6 ignores a mount's mark for removal, and leaves a plugin connected that was not synchronized: it is never called.
        self.knows_removal = line != "1.7"
        self.closes_unsynchronized = line != "1.7"

    def create(self, view: ContainerView) -> nri.CreateContainerRequest:
        """The call for a container that is being made."""
        return nri.CreateContainerRequest(pod=self.pod(view.pod), container=self.container(view))

    def event(self, kind: nri.Event, *, pod: Pod, view: ContainerView | None) -> nri.StateChangeEvent:
        """An event about a pod, or about a container of it."""
        known = self._events[kind]
        sandbox = self._filled_pod(known.pod, pod)
        return nri.StateChangeEvent(event=known.event, pod=sandbox, container=None if view is None else self.container(view))

    def pod(self, pod: Pod) -> nri.PodSandbox:
        """A pod that runs."""
        return self._filled_pod(self._create.pod, pod)

    def container(self, view: ContainerView) -> nri.Container:
        """A container."""
        message = nri.Container()
        message.CopyFrom(self._create.container)
        message.id, message.pod_sandbox_id, message.name = view.id, view.pod.id, view.name
        message.state, message.pid = view.state, view.pid
        _replace(message.labels, view.labels)
        _replace(message.annotations, view.config["annotations"])
        process = view.config["process"]
        for present, wanted in ((message.args, process["args"]), (message.env, process["env"])):
            del present[:]
            present.extend(wanted)
        del message.mounts[:]
        message.mounts.extend(nri.Mount(**mount) for mount in view.config["mounts"])
        linux = view.config["linux"]
        message.linux.cgroups_path = view.cgroups_path
        del message.linux.devices[:]
        message.linux.devices.extend(
            nri.LinuxDevice(path=one["path"], type=one["type"], major=one["major"], minor=one["minor"])
            for one in linux["devices"]
        )
        del message.linux.resources.devices[:]
        message.linux.resources.devices.extend(_rule(rule) for rule in linux["resources"]["devices"])
        return message

    def _filled_pod(self, known: nri.PodSandbox, pod: Pod) -> nri.PodSandbox:
        message = nri.PodSandbox()
        message.CopyFrom(known)
        message.id, message.name, message.uid, message.namespace = pod.id, pod.spec.name, pod.spec.uid, pod.spec.namespace
        message.runtime_handler = pod.spec.runtime_handler
        # No process holds the pod's namespaces here, and none is named.
        message.pid = 0
        if message.HasField("linux"):
            message.linux.cgroup_parent = parent_of(pod.spec.uid)
            message.linux.cgroups_path = pod.cgroup_of(pod.id)
        values = {"name": pod.spec.name, "namespace": pod.spec.namespace, "uid": pod.spec.uid}
        for key in set(message.labels) & {f"io.kubernetes.pod.{name}" for name in values}:
            message.labels[key] = values[key.rpartition(".")[2]]
        for key in set(message.annotations) & {f"io.kubernetes.cri.sandbox-{name}" for name in (*values, "id")}:
            message.annotations[key] = ({"id": pod.id} | values)[key.rpartition("-")[2]]
        message.annotations.update(pod.spec.annotations)
        return message


@dataclass(slots=True)
class Adjuster:
    """Applies the answers of all plugins to one container, and refuses what two of them set."""

    config: oci.Config
    knows_removal: bool
    _owners: dict[tuple[str, str], str] = field(default_factory=dict)

    def apply(self, adjust: nri.ContainerAdjustment, *, plugin: str) -> None:
        """Changes the configuration by one plugin's answer.

        Raises:
            Conflict: a mount, variable or annotation is set that a plugin has set.
            NotImplementedError: it asks for something that this stand-in cannot apply.
        """
        beyond = UnknownFieldSet(adjust)
        if len(beyond):
            raise NotImplementedError(
                f"plugin {plugin} adjusts field {beyond[0].field_number} of a container, which the stand-in cannot apply"
            )
        for key, value in adjust.annotations.items():
            self._claim("annotation", key, plugin)
            self.config["annotations"][key] = value
        for variable in adjust.env:
            self._set_variable(variable, plugin)
        for mount in adjust.mounts:
            self._set_mount(mount, plugin)
        if adjust.mounts:
            oci.sort_mounts_by_depth_and_name(self.config)

    def _set_variable(self, variable: nri.KeyValue, plugin: str) -> None:
        if self._is_removal("env", variable.key, plugin):
            oci.remove_env(self.config, variable.key[1:])
        else:
            oci.set_env(self.config, [f"{variable.key}={variable.value}"])

    def _set_mount(self, mount: nri.Mount, plugin: str) -> None:
        if not self._is_removal("mount", mount.destination, plugin):
            oci.put_mount(self.config, destination=mount.destination, source=mount.source, type=mount.type, options=mount.options)
        elif self.knows_removal:
            oci.remove_mount(self.config, mount.destination[1:])

    def _is_removal(self, kind: str, key: str, plugin: str) -> bool:
        if key.startswith("-"):
            self._owners.pop((kind, key[1:]), None)
            return True
        self._claim(kind, key, plugin)
        return False

    def _claim(self, kind: str, key: str, plugin: str) -> None:
        if (kind, key) in self._owners:
            raise Conflict(f'plugins "{plugin}" and "{self._owners[kind, key]}" both tried to set {kind} {key}')
        self._owners[kind, key] = plugin


def _replace(present: Any, wanted: Mapping[str, str]) -> None:
    present.clear()
    present.update(wanted)


def _rule(rule: Mapping[str, Any]) -> nri.LinuxDeviceCgroup:
    message = nri.LinuxDeviceCgroup(allow=rule["allow"], type=rule.get("type", ""), access=rule["access"])
    for name in ("major", "minor"):
        if name in rule:
            getattr(message, name).value = rule[name]
            getattr(message, name).SetInParent()
    return message
