"""NRI messages ↔ values. The runtime's protobuf classes are known here and nowhere else.

A container that shows no grant costs its decoding and one look at its env.
"""

from __future__ import annotations

import functools
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from vgpu_nri.containers import Adjustment, ContainerState, Device, DeviceRule, Pod, Subject, VgpuContainer
from vgpu_proto import nri
from vgpu_state import grants
from vgpu_state.container_abi import Mount
from vgpu_state.errors import MalformedInput

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

START_CONTAINER = int(nri.START_CONTAINER)
STOP_CONTAINER = int(nri.STOP_CONTAINER)
REMOVE_CONTAINER = int(nri.REMOVE_CONTAINER)

EMPTY = b""  # of every response: nothing to change
MORE_PARTS = nri.SynchronizeResponse(more=True).SerializeToString()

_SHARED = 1024  # equal values that are kept once
_STATES = {state.value: state for state in ContainerState}
_MessageT = TypeVar("_MessageT", bound=Message)


def encode_register(name: str, index: str) -> bytes:
    return nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index).SerializeToString()


def decode_configure(payload: bytes) -> tuple[str, str]:
    """The runtime's name and version.

    Raises:
        MalformedInput: the bytes are no such message (so for every decode_* of this module).
    """
    request = _parse(nri.ConfigureRequest, payload)
    return request.runtime_name, request.runtime_version


def encode_configured(mask: int) -> bytes:
    return nri.ConfigureResponse(events=mask).SerializeToString()


def decode_synchronize(payload: bytes) -> tuple[tuple[VgpuContainer, ...], bool]:
    """The vGPU containers of a part, and whether another part follows."""
    request = _parse(nri.SynchronizeRequest, payload)
    shown = [(container, grants.grant_entries(container.env)) for container in request.containers]
    ours = [(container, entries) for container, entries in shown if entries]
    # Pods are looked up only when one is needed: a node has hundreds, and few of them are ours.
    pods = {pod.id: pod for pod in request.pods} if ours else {}
    return tuple(_container(c, pods.get(c.pod_sandbox_id, nri.PodSandbox()), entries) for c, entries in ours), request.more


def decode_create(payload: bytes) -> Subject:
    request = _parse(nri.CreateContainerRequest, payload)
    return _subject(request.container, request.pod)


def decode_start(payload: bytes) -> Subject:
    request = _parse(nri.StartContainerRequest, payload)
    return _subject(request.container, request.pod)


def decode_stop(payload: bytes) -> Subject:
    request = _parse(nri.StopContainerRequest, payload)
    return _subject(request.container, request.pod)


def decode_remove(payload: bytes) -> Subject:
    request = _parse(nri.RemoveContainerRequest, payload)
    return _subject(request.container, request.pod)


def decode_state_change(payload: bytes) -> tuple[int, Subject]:
    """The event's number and its container."""
    event = _parse(nri.StateChangeEvent, payload)
    return int(event.event), _subject(event.container, event.pod)


def encode_adjustment(adjustment: Adjustment) -> bytes:
    """A CreateContainerResponse; no bytes when there is nothing to adjust."""
    if not adjustment.mounts and not adjustment.env:
        return EMPTY
    response = nri.CreateContainerResponse()
    for mount in adjustment.mounts:
        response.adjust.mounts.add(
            destination=mount.destination, type=mount.type, source=mount.source, options=list(mount.options)
        )
    for name, value in adjustment.env:
        response.adjust.env.add(key=name, value=value)
    return response.SerializeToString()


def warm_up() -> None:
    """Pays for the first use of the codecs before the runtime waits for it."""
    container = nri.Container(
        id="0" * 64, name="warm", env=[f"{grants.ENV_PREFIX}{'0' * 16}="], mounts=[nri.Mount(destination="/")]
    )
    decode_create(nri.CreateContainerRequest(pod=nri.PodSandbox(id="0"), container=container).SerializeToString())
    decode_synchronize(nri.SynchronizeRequest(pods=[nri.PodSandbox(id="0")], containers=[container]).SerializeToString())
    decode_state_change(nri.StateChangeEvent(event=nri.START_CONTAINER, container=container).SerializeToString())
    encode_adjustment(Adjustment(mounts=(Mount(destination="/", source="/"),), env=(("a", "b"),), claim_uid="", partition=""))


def _parse(kind: type[_MessageT], payload: bytes) -> _MessageT:
    try:
        return kind.FromString(payload)
    except DecodeError as exc:
        raise MalformedInput(f"{kind.DESCRIPTOR.name} of {len(payload)} bytes is malformed") from exc


def _subject(container: nri.Container, pod: nri.PodSandbox) -> Subject:
    entries = grants.grant_entries(container.env)
    return Subject(runtime_id=container.id, vgpu=_container(container, pod, entries) if entries else None)


def _container(container: nri.Container, pod: nri.PodSandbox, entries: list[tuple[str, str]]) -> VgpuContainer:
    linux = container.linux
    return VgpuContainer(
        runtime_id=container.id,
        name=container.name,
        pod=Pod(uid=pod.uid, namespace=pod.namespace, name=pod.name, runtime_handler=pod.runtime_handler),
        grants=tuple(entries),
        mounts=tuple(_mount(m.destination, m.source, m.type, _options(tuple(m.options))) for m in container.mounts),
        devices=tuple(_device(d.path, d.type, d.major, d.minor) for d in linux.devices),
        device_rules=tuple(map(_device_rule, linux.resources.devices)),
        cgroup_path=linux.cgroups_path,
        pid=container.pid,
        state=_STATES.get(int(container.state), ContainerState.UNKNOWN),
    )


# Containers are kept for as long as they live, and hundreds of them have equal mounts, devices and rules: one value serves all.


@functools.lru_cache(maxsize=_SHARED)
def _mount(destination: str, source: str, kind: str, options: tuple[str, ...]) -> Mount:
    return Mount(destination=destination, source=source, type=kind, options=options)


@functools.lru_cache(maxsize=_SHARED)
def _options(options: tuple[str, ...]) -> tuple[str, ...]:
    return options


@functools.lru_cache(maxsize=_SHARED)
def _device(path: str, kind: str, major: int, minor: int) -> Device:
    return Device(path=path, type=kind, major=major, minor=minor)


@functools.lru_cache(maxsize=_SHARED)
def _shared_rule(is_allowed: bool, kind: str, major: int | None, minor: int | None) -> DeviceRule:
    return DeviceRule(is_allowed=is_allowed, type=kind, major=major, minor=minor)


def _device_rule(rule: nri.LinuxDeviceCgroup) -> DeviceRule:
    major = _number(rule.major) if rule.HasField("major") else None
    minor = _number(rule.minor) if rule.HasField("minor") else None
    return _shared_rule(rule.allow, rule.type, major, minor)


def _number(wrapped: nri.OptionalInt64) -> int | None:
    """-1 is how OCI writes "every number" where it writes one at all."""
    return wrapped.value if wrapped.value >= 0 else None
