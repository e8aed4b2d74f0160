"""The first program of every process of a stand-in container; it turns itself into what was asked for.

Run as a script, `python -I -S runtime_init.py FD`, with a socket to the runtime. It makes namespaces or joins them, makes the
mounts as runc does, gives up what the container may not have, and calls exec. It imports nothing but the standard library:
the container's file system is all that it sees at the end.

Words on the socket, a JSON object a line. The runtime sends the task; then, each time, this side says how far it is (`step`)
or why it cannot go on (`error`), and the runtime answers a line to let it go on. The end of the socket without an error is
exec's success. Source: runc, libcontainer/rootfs_linux.go (order of steps, texts of errors).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_RELATIME, MS_STRICTATIME = 1024, 2048, 4096, 16384, 1 << 21, 1 << 24
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 24, 36
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_FLAGS = {
    "ro": MS_RDONLY, "nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC, "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME, "relatime": MS_RELATIME, "strictatime": MS_STRICTATIME, "bind": MS_BIND,
    "rbind": MS_BIND | MS_REC,
}  # fmt: skip
_CLEARED = {"rw": MS_RDONLY, "suid": MS_NOSUID, "dev": MS_NODEV, "exec": MS_NOEXEC, "defaults": 0}
_PROPAGATION = ("private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable")
# statvfs tells flags in numbers of its own.
_FLAG_OF_STATVFS = {
    1: MS_RDONLY,
    2: MS_NOSUID,
    4: MS_NODEV,
    8: MS_NOEXEC,
    1024: MS_NOATIME,
    2048: MS_NODIRATIME,
    4096: MS_RELATIME,
}
_HOST_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
              "ptmx": "pts/ptmx"}  # fmt: skip
_MAX_LINKS = 255

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """Raised with runc's text when the container cannot be made."""


def main() -> None:
    """Does the task that comes over the socket; does not return where it succeeds."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # exec closes it, which is how the runtime learns of its success
    words = link.makefile("rwb", buffering=0)

    def tell(**word: str) -> None:
        words.write(json.dumps(word).encode() + b"\n")

    def report(step: str) -> None:
        tell(step=step)
        if not words.readline():
            sys.exit(1)

    task = json.loads(words.readline())
    try:
        _TASKS[task["do"]](task, report)
        program = find_program(task["args"][0], task["env"], task["cwd"])
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        report("ready")
        give_up(task)
        os.chdir(task["cwd"])
        os.execve(program, task["args"], dict(entry.split("=", 1) for entry in task["env"]))
    except Refused as exc:
        tell(error=str(exc))
    except OSError as exc:
        tell(error=f'exec: "{task["args"][0]}": {reason_of(exc)}')
    sys.exit(1)


def make_namespaces(task: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """A user and a mount namespace with the container's root at /."""
    try:
        _call(_libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
        report("unshared")
        # The ids are mapped: files made from here on belong to the container's root.
        _mount("", "/", "", MS_REC | MS_PRIVATE, "")
        rootfs = task["rootfs"]
        _mount(rootfs, rootfs, "", MS_BIND | MS_REC, "")
    except OSError as exc:
        raise Refused(f"cannot make a user and mount namespace: {reason_of(exc)}") from exc
    for mount in task["mounts"]:
        make_mount(rootfs, mount)
    _fill_dev(rootfs, task["devices"])
    os.chdir(rootfs)
    _call(_libc.syscall, _PIVOT_ROOT[os.uname().machine], b".", b".")
    _call(_libc.umount2, b".", MNT_DETACH)
    os.chdir("/")
    if task["readonly"]:
        _remount("/", MS_RDONLY)


def join_namespaces(task: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Those of a process that runs."""
    del report
    handles = [os.open(f"/proc/{task['pid']}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    for handle in handles:
        _call(_libc.setns, handle, 0)
        os.close(handle)
    os.chdir("/")


def stay(task: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """On the host: the runtime has mapped the paths."""
    del task, report


_TASKS: dict[str, Callable[[Mapping[str, Any], Callable[[str], None]], None]] = {
    "make": make_namespaces,
    "join": join_namespaces,
    "stay": stay,
}


def give_up(task: Mapping[str, Any]) -> None:
    """Becomes the container's user, without the capabilities that the container has not."""
    for number in task["dropped_capabilities"]:
        _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # one that this kernel does not know is an error of no matter
    if task["may_set_groups"]:
        os.setgroups(task["groups"])
    os.setgid(task["gid"])
    os.setuid(task["uid"])
    # A change of credentials clears it, so it comes last. Nothing of a test outlives its runtime.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # the interpreter ignores them, and exec would hand that on


def make_mount(rootfs: str, mount: Mapping[str, Any]) -> None:
    """One entry of the configuration's list.

    Raises:
        Refused: it cannot be made.
    """
    source, destination = mount["source"], mount["destination"]
    flags, data = _parse_options(mount["options"])
    try:
        _make_mount(rootfs, mount["type"], source, destination, (flags, data))
    except OSError as exc:
        raise Refused(f'error mounting "{source}" to rootfs at "{destination}": {reason_of(exc)}') from exc


def resolve_in_root(root: str, path: str) -> str:
    """Where `path` lies on the host when links are followed as a process with `root` at / follows them."""
    pending = [part for part in path.split("/") if part not in ("", ".")][::-1]
    found: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            found = found[:-1]
            continue
        here = "/".join([root, *found, part])
        if os.path.islink(here) and links < _MAX_LINKS:
            links += 1
            target = os.readlink(here)
            found = [] if target.startswith("/") else found
            pending += [one for one in target.split("/") if one not in ("", ".")][::-1]
        else:
            found.append(part)
    return "/".join([root, *found])


def find_program(name: str, env: list[str], cwd: str) -> str:
    """The file that exec will run.

    Raises:
        Refused: there is none, or it is no program.
    """
    if "/" in name:
        path = os.path.join(cwd, name)
        try:
            os.stat(path)
        except OSError as exc:
            raise Refused(f'exec: "{name}": {reason_of(exc)}') from exc
        if not os.access(path, os.X_OK):
            raise Refused(f'exec: "{name}": permission denied')
        return path
    search = next((entry[5:] for entry in env if entry.startswith("PATH=")), "")
    for folder in search.split(":"):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise Refused(f'exec: "{name}": executable file not found in $PATH')


def reason_of(exc: OSError) -> str:
    """An error of the kernel in Go's words: the call, the path, the reason in lower case."""
    subject = f"{exc.strerror}: " if exc.filename is None else ""
    if exc.filename is not None:
        return f"{_CALLS.get(exc.errno or 0, 'stat')} {exc.filename}: {os.strerror(exc.errno or 0).lower()}"
    return (subject or "").removesuffix(": ").lower()


_CALLS = {30: "mkdir"}


def _make_mount(rootfs: str, kind: str, source: str, destination: str, options: tuple[int, str]) -> None:
    flags, data = options
    if kind == "cgroup":
        return  # lies below the host's /sys, which is mounted whole
    if kind in ("proc", "sysfs"):
        # The kernel gives a new instance only to the owner of the PID or network namespace, which is the host's.
        source, flags, data = {"proc": "/proc", "sysfs": "/sys"}[kind], MS_BIND | MS_REC | (flags & MS_RDONLY), ""
    if flags & MS_BIND:
        is_folder = stat.S_ISDIR(os.stat(source).st_mode)
        target = _mount_point(rootfs, destination, is_folder=is_folder)
        _mount(source, target, "", flags & (MS_BIND | MS_REC), "")
        _remount(target, flags & ~(MS_BIND | MS_REC))
        return
    target = _mount_point(rootfs, destination, is_folder=True)
    if kind in ("devpts", "mqueue"):
        kind, data = "tmpfs", ""  # needs an id or a namespace that an unprivileged container has not
    _mount(source, target, kind, flags, data)
    if kind == "tmpfs" and destination == "/dev":
        os.chmod(target, 0o755)


def _mount_point(rootfs: str, destination: str, *, is_folder: bool) -> str:
    target = resolve_in_root(rootfs, destination)
    if os.path.lexists(target):
        return target
    os.makedirs(target if is_folder else os.path.dirname(target), mode=0o755, exist_ok=True)
    if not is_folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    return target


def _parse_options(options: list[str]) -> tuple[int, str]:
    flags = 0
    data = []
    for option in options:
        if option in _FLAGS:
            flags |= _FLAGS[option]
        elif option in _CLEARED:
            flags &= ~_CLEARED[option]
        elif option not in _PROPAGATION:
            data.append(option)
    return flags, ",".join(data)


def _fill_dev(rootfs: str, devices: list[Mapping[str, str]]) -> None:
    """The nodes that every container has, and those asked for: the host's, bound, as no node can be made here."""
    for device in [*({"path": f"/dev/{name}", "source": f"/dev/{name}"} for name in _HOST_NODES), *devices]:
        target = _mount_point(rootfs, device["path"], is_folder=False)
        _mount(device["source"], target, "", MS_BIND, "")
    for name, target in _DEV_LINKS.items():
        place = f"{rootfs}/dev/{name}"
        if not os.path.lexists(place):
            os.symlink(target, place)


def _remount(target: str, flags: int) -> None:
    """Gives a bind mount its flags; those that the namespace found there cannot be taken away and stay."""
    present = os.statvfs(target).f_flag
    kept = 0
    for number, flag in _FLAG_OF_STATVFS.items():
        kept |= flag if present & number else 0
    if flags & ~kept:
        _mount("", target, "", MS_REMOUNT | MS_BIND | kept | flags, "")


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    _call(_libc.mount, os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
