"""A machine within the machine for a cluster: its own network, its own mounts, the host's processes and files.

What a node writes into well-known places (/var/lib, /var/log) lands in the cluster's folder, its interfaces and ports
are no one else's, and all of it is gone when its last process has ended. From the host, ports inside are reached through
listening sockets that the holder process relays.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

BRIDGE = "cni0"
POD_NETWORK = "10.88.0.0/16"
NODE_ADDRESS = "10.88.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
# The first of the services' addresses is the API server's own; on the loopback interface no proxy is needed to reach it.
API_ADDRESS = "10.96.0.1"

# What kubelet sets on its host, given the values that it wants, so that it does not.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_NEW_NAMESPACES = ("unshare", "--net", "--mount", "--propagation", "slave")
_RUNTIME = "run-containerd"
_COVERED = ("/var/lib", "/var/log")
_END_S = 10.0


class NamespaceFailed(Exception):
    """Raised when the namespaces cannot be made or furnished; says what the holder wrote."""


class Namespace:
    """Network and mount namespaces, from `start` to `stop`."""

    def __init__(self, root: Path, *, kubelet_root: Path, cgroup: str, ports: Iterable[int]) -> None:
        """`root` gets what is written under /var/lib and /var/log inside; `ports` are those that the host can reach.

        What is in `cgroup` ends with the namespaces where this process cannot see to it itself.
        """
        self._root = root
        self._cgroup = cgroup
        self._kubelet_root = kubelet_root
        self._host_ports = dict.fromkeys(ports, 0)
        self._holder: subprocess.Popen[bytes] | None = None

    def host_port(self, port: int) -> int:
        """Where on 127.0.0.1 of the host a port of the inner 127.0.0.1 is reached; the same in every later life."""
        if not self._host_ports[port]:
            raise NamespaceFailed("the namespaces were not there yet")
        return self._host_ports[port]

    @property
    def prefix(self) -> tuple[str, ...]:
        """What makes a command line run inside; the process keeps its pid."""
        if self._holder is None:
            raise NamespaceFailed("the namespaces are not there")
        return ("nsenter", "--net", "--mount", "--target", str(self._holder.pid), "--")

    @property
    def is_up(self) -> bool:
        return self._holder is not None and self._holder.poll() is None

    def start(self) -> None:
        """Makes the namespaces."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._kubelet_root.mkdir(parents=True, exist_ok=True)
        log = self._root / "holder.log"
        with contextlib.ExitStack() as stack:
            listeners = {inner: stack.enter_context(_listener(outer)) for inner, outer in self._host_ports.items()}
            self._host_ports = {inner: listener.getsockname()[1] for inner, listener in listeners.items()}
            order = {
                "commands": [*_network(), *_mounts(self._root, self._kubelet_root)],
                "relays": [[listener.fileno(), inner] for inner, listener in listeners.items()],
                "cgroup": self._cgroup,
            }
            self._holder = subprocess.Popen(
                [*_NEW_NAMESPACES, sys.executable, "-m", f"{__package__}.cluster_holder", json.dumps(order)],
                pass_fds=[listener.fileno() for listener in listeners.values()],
                # pytest finds our package by its own setting, which a process does not inherit.
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("ab")),
                start_new_session=True,
            )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            self.stop()
            raise NamespaceFailed(log.read_text(errors="replace").strip())

    def stop(self) -> None:
        """Ends the holder; what else runs inside keeps the namespaces. Bears repetition."""
        if self._holder is not None:
            self._holder.send_signal(signal.SIGKILL)
            self._holder.communicate(timeout=_END_S)
            self._holder = None
            shutil.rmtree(self._root / _RUNTIME, ignore_errors=True)


def _listener(port: int) -> socket.socket:
    """Listens on that port, or on any where it is 0."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def _network() -> list[list[str]]:
    width = POD_NETWORK.partition("/")[2]
    lines = (
        "link set lo up",
        f"address add {API_ADDRESS}/32 dev lo",
        f"link add {BRIDGE} type bridge",
        f"address add {NODE_ADDRESS}/{width} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    )
    return [["ip", *line.split()] for line in lines]


def _mounts(root: Path, kubelet_root: Path) -> list[list[str]]:
    commands = [["mount", "--make-rshared", "/"]]
    for place in _COVERED:
        upper, work = root / f"over{place}", root / f"work{place}"
        for folder in (upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        commands.append(["mount", "-t", "overlay", "vgpu-cluster", "-o", options, place])
    # Kubelet has its own folder where everyone looks for it, whatever it calls it; containerd's shims and runc keep
    # theirs in /run/containerd, wherever containerd itself is told to.
    runtime = root / _RUNTIME
    runtime.mkdir(exist_ok=True)
    for folder, place in ((kubelet_root, "/var/lib/kubelet"), (runtime, "/run/containerd")):
        commands += [["mkdir", "-p", place], ["mount", "--bind", str(folder), place]]
    settings = root / "kernel-settings"
    settings.mkdir(exist_ok=True)
    for name, value in _KERNEL_SETTINGS.items():
        if Path("/proc/sys", name).exists():
            instead = settings / name.replace("/", ".")
            instead.write_text(f"{value}\n")
            commands.append(["mount", "--bind", str(instead), f"/proc/sys/{name}"])
    return commands
