"""Processes of stand-in containers: started, held before they run, let go, waited for, ended.

Owns the talk with `runtime_init`, which each of them is at first. Knows no container and no runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from vgpu_testkit import oci

_INIT = Path(__file__).parent / "runtime_init.py"
_STEP_WITHIN_S = 20.0
# The kernel's numbers, in their order (linux/capability.h).
_CAPABILITY_NUMBERS = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
    "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
    "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip


class Isolation(StrEnum):
    """What keeps a stand-in container from the host."""

    NAMESPACES = "user+mount namespace"
    PATHS_MAPPED = "paths mapped"


class ProcessRefused(Exception):
    """Raised when a process cannot become what was asked; the message is runc's."""


class OutputPipe:
    """Where a process writes to, and our end of it.

    Not asyncio's own pipes of a subprocess: its `wait` returns only when these are closed, which what the process has left
    behind may put off for ever.
    """

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport, write_end: int) -> None:
        self.reader = reader
        self.write_end = write_end
        self._transport = transport

    @classmethod
    async def open(cls) -> OutputPipe:
        """A pipe that nobody writes to yet."""
        read_end, write_end = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        return cls(reader, transport, write_end)

    def seal(self) -> None:
        """Gives up our hold of the write end: the processes that have it are the only ones."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        """Gives up both ends."""
        self.seal()
        self._transport.close()


class HeldProcess:
    """A process that has come as far as it can before its program runs."""

    def __init__(self, process: asyncio.subprocess.Process, link: _Link) -> None:
        self._process = process
        self._link = link
        self.pid = process.pid

    async def run(self) -> asyncio.subprocess.Process:
        """Lets the program run; returns when it does.

        Raises:
            ProcessRefused: exec failed; the process has ended.
        """
        try:
            await self._link.say("run")
            word = await self._link.hear()
        finally:
            self._link.close()
        if word is not None:
            await end(self._process)
            raise ProcessRefused(word["error"])
        return self._process

    async def drop(self) -> None:
        """Ends it without having run anything."""
        self._link.close()
        await end(self._process)


async def hold(task: Mapping[str, Any], *, stdout: int, stderr: int) -> HeldProcess:
    """Starts a process for a task of `runtime_init` and brings it to the point before its program runs.

    `stdout` and `stderr` are descriptors, or DEVNULL.

    Raises:
        ProcessRefused: it cannot be made as asked; nothing is left of it.
    """
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_INIT),
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    link = _Link(*await asyncio.open_unix_connection(sock=ours))
    try:
        async with asyncio.timeout(_STEP_WITHIN_S):
            await _bring_to_ready(link, process.pid, task)
    except BaseException:
        link.close()
        await end(process)
        raise
    return HeldProcess(process, link)


async def end(process: asyncio.subprocess.Process) -> None:
    """Kills a process and waits for its end; one that has ended is no fault."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()


def task_for(config: oci.Config, *, args: Sequence[str], do: str, **more: Any) -> dict[str, Any]:
    """What `runtime_init` is told for a process of the container with this configuration."""
    process = config["process"]
    kept = set(process["capabilities"]["bounding"])
    # Root of a user namespace that an ordinary user made may not.
    may_set_groups = os.geteuid() == 0 and Path("/proc/self/setgroups").read_text().strip() == "allow"
    return {
        "do": do,
        "args": list(args),
        "env": list(process["env"]),
        "cwd": process["cwd"],
        "uid": process["user"]["uid"],
        "gid": process["user"]["gid"],
        "groups": list(process["user"]["additionalGids"]),
        "may_set_groups": may_set_groups,
        "dropped_capabilities": [number for number, name in enumerate(_CAPABILITY_NUMBERS) if name not in kept],
        **more,
    }


async def find_isolation(folder: Path) -> Isolation:
    """The best that this machine and user allow, tried out with a container of nothing below `folder`."""
    rootfs = folder / "rootfs"
    rootfs.mkdir(parents=True, exist_ok=True)
    program = rootfs / "true"
    program.touch()
    program.chmod(0o755)
    config: oci.Config = {
        "process": {
            "env": [],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0, "additionalGids": []},
            "capabilities": {"bounding": list(oci.DEFAULT_CAPABILITIES)},
        }
    }
    mounts = [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}]
    task = task_for(config, args=["/true"], do="make", rootfs=str(rootfs), mounts=mounts, devices=[], readonly=True)
    try:
        held = await hold(task, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    except (ProcessRefused, OSError):
        return Isolation.PATHS_MAPPED
    await held.drop()
    return Isolation.NAMESPACES


class _Link:
    """Our end of the socket to a `runtime_init`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, line: str) -> None:
        self._writer.write(line.encode() + b"\n")
        await self._writer.drain()

    async def hear(self) -> dict[str, str] | None:
        """The next word; None at the end of the socket."""
        line = await self._reader.readline()
        word: dict[str, str] | None = json.loads(line) if line else None
        return word

    def close(self) -> None:
        self._writer.close()


async def _bring_to_ready(link: _Link, pid: int, task: Mapping[str, Any]) -> None:
    await link.say(json.dumps(task))
    while (word := await link.hear()) is not None:
        if "error" in word:
            raise ProcessRefused(word["error"])
        if word["step"] == "ready":
            return
        _map_ids(pid, task["uid"], task["gid"])
        await link.say("mapped")
    raise ProcessRefused("the first process of the container ended before it was ready")


def _map_ids(pid: int, uid: int, gid: int) -> None:
    """Gives the new user namespace every id that we have; without root, only ours, as the id that the container runs as."""
    folder = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            lines = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
            (folder / name).write_text("".join(f"{first} {first} {count}\n" for first, _, count in lines))
        return
    (folder / "setgroups").write_text("deny")
    (folder / "uid_map").write_text(f"{uid} {os.geteuid()} 1\n")
    (folder / "gid_map").write_text(f"{gid} {os.getegid()} 1\n")


def send(pid: int, number: signal.Signals) -> None:
    """Signals a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
