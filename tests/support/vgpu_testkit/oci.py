"""OCI runtime configurations: what containerd makes of a CRI request, and the changes that CDI and NRI bring to it.

A configuration is the JSON object of config.json. Pure but for the host's device nodes that a request names. Source: OCI
runtime specification; containerd internal/cri/server (container_create_linux.go), pkg/oci.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_proto import cri as wire
from vgpu_testkit.pods import Pod

Config = dict[str, Any]
NodeLookup = Callable[[str], tuple[str, int, int]]

# What runc gives a container that asks for nothing.
DEFAULT_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip
ALL_CAPABILITIES = (
    *DEFAULT_CAPABILITIES, "AUDIT_CONTROL", "AUDIT_READ", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH",
    "IPC_LOCK", "IPC_OWNER", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "NET_ADMIN", "NET_BROADCAST", "PERFMON",
    "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME",
    "SYS_TTY_CONFIG", "SYSLOG", "WAKE_ALARM",
)  # fmt: skip

_IMAGE_ENV = ("PATH=/bin",)
_BIND = ("rbind", "rprivate")
_DEFAULT_MOUNTS = (
    ("/proc", "proc", "proc", ("nosuid", "noexec", "nodev")),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
    ("/dev/mqueue", "mqueue", "mqueue", ("nosuid", "noexec", "nodev")),
    ("/sys", "sysfs", "sysfs", ("nosuid", "noexec", "nodev", "ro")),
    ("/sys/fs/cgroup", "cgroup", "cgroup", ("nosuid", "noexec", "nodev", "relatime", "ro")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFiles:
    """What a pod's sandbox gives to each of its containers."""

    hostname: Path
    resolv_conf: Path
    shm: Path


class RefusedConfig(ValueError):
    """Raised when a configuration cannot be made as asked; the message is the runtime's."""


def new_config(pod: Pod, asked: wire.ContainerConfig, sandbox: SandboxFiles) -> Config:
    """What a container starts from: the image's part, the request's mounts, env and devices, the sandbox's files.

    Raises:
        RefusedConfig: the request names a device of the host that is none.
    """
    security = asked.linux.security_context
    capabilities = _capabilities(security)
    config: Config = {
        "ociVersion": "1.2.0",
        "process": {
            "user": {"uid": security.run_as_user.value, "gid": security.run_as_group.value, "additionalGids": []},
            "args": [*asked.command, *asked.args],
            "env": [*_IMAGE_ENV, f"HOSTNAME={os.uname().nodename}"],
            "cwd": asked.working_dir or "/",
            "capabilities": {name: list(capabilities) for name in ("bounding", "effective", "permitted")},
        },
        "root": {"path": "rootfs", "readonly": security.readonly_rootfs},
        "mounts": _mounts(asked, sandbox),
        "annotations": _annotations(pod, asked),
        "linux": {"devices": [], "resources": {"devices": [{"allow": security.privileged, "access": "rwm"}]}},
    }
    set_env(config, (f"{one.key}={one.value}" for one in asked.envs))
    for device in asked.devices:
        kind, major, minor = node_numbers(device.host_path)
        put_device(config, {"path": device.container_path, "type": kind, "major": major, "minor": minor}, device.permissions)
    return config


def set_env(config: Config, entries: Iterable[str]) -> None:
    """Sets variables given as `K=V`: a known one keeps its place and gets the value, so a later entry wins."""
    env: list[str] = config["process"]["env"]
    for entry in entries:
        key = entry.partition("=")[0]
        places = [i for i, present in enumerate(env) if present.partition("=")[0] == key]
        if places:
            env[places[0]] = entry
        else:
            env.append(entry)


def remove_env(config: Config, key: str) -> None:
    """Takes a variable away; one that is not there is no fault."""
    env = config["process"]["env"]
    env[:] = [entry for entry in env if entry.partition("=")[0] != key]


def put_mount(config: Config, *, destination: str, source: str, type: str, options: Iterable[str]) -> None:
    """Adds a mount at the end; one at the very same destination goes."""
    remove_mount(config, destination)
    config["mounts"].append(_mount(destination, type, source, options))


def remove_mount(config: Config, destination: str) -> None:
    """Takes the mount at exactly this destination away."""
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != destination]


def sort_mounts_by_depth(config: Config) -> None:
    """Parents before children; mounts of one depth keep their order. After CDI's edits."""
    config["mounts"].sort(key=lambda mount: _depth(mount["destination"]))


def sort_mounts_by_depth_and_name(config: Config) -> None:
    """Parents before children; mounts of one depth by destination. After NRI's adjustment."""
    config["mounts"].sort(key=lambda mount: (_depth(mount["destination"]), mount["destination"]))


def put_device(config: Config, device: dict[str, Any], permissions: str) -> None:
    """Adds a device node in place of one at the same path, and lets the container use it."""
    devices = config["linux"]["devices"]
    devices[:] = [present for present in devices if present["path"] != device["path"]] + [device]
    if device["type"] in ("b", "c"):
        config["linux"]["resources"]["devices"].append(_rule(device["type"], device["major"], device["minor"], permissions))


def node_numbers(path: str) -> tuple[str, int, int]:
    """Type, major and minor of a node of the host.

    Raises:
        RefusedConfig: there is none, or it is no device.
    """
    try:
        status = os.lstat(path)
    except OSError as exc:
        raise RefusedConfig(f"lstat {path}: {os.strerror(exc.errno or 0).lower()}") from exc
    if stat.S_ISCHR(status.st_mode):
        return "c", os.major(status.st_rdev), os.minor(status.st_rdev)
    if stat.S_ISBLK(status.st_mode):
        return "b", os.major(status.st_rdev), os.minor(status.st_rdev)
    if stat.S_ISFIFO(status.st_mode):
        return "p", 0, 0
    raise RefusedConfig(f'"{path}" is not a device node')


def numbers_of_stand_in(path: str) -> tuple[str, int, int]:
    """As `node_numbers`, but a regular file stands for the character device of NVIDIA's that has its name.

    For nodes of a mock that was made without the right to make devices.
    """
    known = {"nvidiactl": (195, 255), "nvidia-uvm": (511, 0), "nvidia-uvm-tools": (511, 1)}
    name = posixpath.basename(path)
    if not os.path.isfile(path):
        return node_numbers(path)
    if name.removeprefix("nvidia").isdigit():
        return "c", 195, int(name.removeprefix("nvidia"))
    if name in known:
        return "c", *known[name]
    return node_numbers(path)


def _depth(destination: str) -> int:
    return posixpath.normpath(destination).count("/")


def _mounts(asked: wire.ContainerConfig, sandbox: SandboxFiles) -> list[dict[str, Any]]:
    """The runtime's own, the request's, the sandbox's; a destination that the request has is not taken from the others."""
    privileged = asked.linux.security_context.privileged
    taken = {posixpath.normpath(mount.container_path) for mount in asked.mounts}
    own = [
        _mount(destination, type, source, ("rw" if option == "ro" and privileged else option for option in options))
        for destination, type, source, options in _DEFAULT_MOUNTS
    ]
    requested = [
        _mount(one.container_path, "bind", one.host_path, (*_BIND, "ro" if one.readonly else "rw")) for one in asked.mounts
    ]
    write = "ro" if asked.linux.security_context.readonly_rootfs else "rw"
    shared = [
        _mount("/etc/hostname", "bind", str(sandbox.hostname), (*_BIND, write)),
        _mount("/etc/resolv.conf", "bind", str(sandbox.resolv_conf), (*_BIND, write)),
        _mount("/dev/shm", "bind", str(sandbox.shm), (*_BIND, "rw")),
    ]
    return [
        *(mount for mount in own if mount["destination"] not in taken),
        *requested,
        *(mount for mount in shared if mount["destination"] not in taken),
    ]


def _mount(destination: str, type: str, source: str, options: Iterable[str]) -> dict[str, Any]:
    return {"destination": destination, "type": type, "source": source, "options": list(options)}


def _annotations(pod: Pod, asked: wire.ContainerConfig) -> dict[str, str]:
    return {
        "io.kubernetes.cri.container-name": asked.metadata.name,
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": asked.image.image,
        "io.kubernetes.cri.sandbox-id": pod.id,
        "io.kubernetes.cri.sandbox-name": pod.spec.name,
        "io.kubernetes.cri.sandbox-namespace": pod.spec.namespace,
        "io.kubernetes.cri.sandbox-uid": pod.spec.uid,
        **asked.annotations,
    }


def _capabilities(security: wire.LinuxContainerSecurityContext) -> tuple[str, ...]:
    added, dropped = security.capabilities.add_capabilities, security.capabilities.drop_capabilities
    base = ALL_CAPABILITIES if security.privileged or "ALL" in added else DEFAULT_CAPABILITIES
    kept = set() if "ALL" in dropped else set(base) - set(dropped)
    return tuple(name for name in ALL_CAPABILITIES if name in kept | set(added))


def _rule(kind: str, major: int, minor: int, access: str) -> dict[str, Any]:
    return {"allow": True, "type": kind, "major": major, "minor": minor, "access": access}
