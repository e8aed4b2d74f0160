"""Unix sockets that appear whole: bound under another name, given their mode, listening, then renamed into place.

Also the one home of how long a socket's path may be, for those that we publish and those that we dial.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from vgpu_daemon.run import BadUsage, StartFailed

MAX_PATH_BYTES = 107  # sun_path has 108, the last for NUL


def check_path(path: Path, *, option: str) -> None:
    """Refuses a path that no socket address has room for, in words that say which option to shorten.

    Raises:
        BadUsage: it has more than 107 bytes.
    """
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise BadUsage(
            f"socket path {path} has {length} bytes, a unix socket's has room for {MAX_PATH_BYTES}; choose a shorter --{option}"
        )


def fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def publish(path: Path, *, mode: int) -> socket.socket:
    """A listening socket at `path`. Replaces what is there, so that a peer never finds the path missing.

    Until the rename it has a name with a leading dot, which kubelet's watch of its plug-in directory passes over. That name is as
    short as the shortest that we publish, so that only the last one's length counts.

    Raises:
        StartFailed: the directory refuses, or the path is longer than `check_path` lets pass.
    """
    staged = path.with_name(f".{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        staged.unlink(missing_ok=True)
        listener.bind(os.fspath(staged))
        os.chmod(staged, mode)  # nobody can connect before listen()
        listener.listen(128)
        os.rename(staged, path)
    except OSError as exc:
        listener.close()
        with suppress(OSError):
            staged.unlink()
        raise StartFailed(f"cannot publish socket {path}: {exc.strerror or exc}") from exc
    return listener


def withdraw(path: Path, listener_identity: tuple[int, int]) -> None:
    """Removes the socket at `path` if it still is ours: a successor may have renamed its own over it."""
    if is_same(path, listener_identity):
        with suppress(OSError):
            path.unlink()


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of what is at `path`, without following a link."""
    status = os.stat(path, follow_symlinks=False)
    return status.st_dev, status.st_ino


def is_same(path: Path, expected: tuple[int, int]) -> bool:
    """Whether what is at `path` has this identity; false where nothing is."""
    try:
        return identity(path) == expected
    except OSError:
        return False


def is_dead(path: Path) -> bool:
    """Whether `path` is a socket on which nobody listens: what a process leaves that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        # A file that is no socket answers the same; a full backlog or a closed permission is a sign of life.
        return path.is_socket() and fits(path) and caller.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def remove_dead(path: Path) -> bool:
    """Removes the socket at `path` if nobody listens on it. Whether it did."""
    if not is_dead(path):
        return False
    with suppress(FileNotFoundError):
        path.unlink()
    return True
