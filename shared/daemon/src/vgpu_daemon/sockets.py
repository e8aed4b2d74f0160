"""Unix sockets that appear whole: bound under another name, given their mode, listening, then renamed into place."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from vgpu_daemon.run import StartFailed

MAX_PATH_BYTES = 107  # sun_path has 108, the last for NUL


def publish(path: Path, *, mode: int) -> socket.socket:
    """A listening socket at `path`. Replaces what is there, so that a peer never finds the path missing.

    Until the rename it has a name with a leading dot, which kubelet's watch of its plug-in directory passes over.

    Raises:
        StartFailed: the path is too long for a socket address, or the directory refuses.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    for candidate in (path, staged):
        if len(os.fsencode(candidate)) > MAX_PATH_BYTES:
            raise StartFailed(f"socket path {candidate} has more than {MAX_PATH_BYTES} bytes; choose a shorter directory")
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
        raise StartFailed(f"cannot publish socket {path}: {exc.strerror}") from exc
    return listener


def withdraw(path: Path, listener_identity: tuple[int, int]) -> None:
    """Removes the socket at `path` if it still is ours: a successor may have renamed its own over it."""
    try:
        if identity(path) == listener_identity:
            path.unlink()
    except OSError:
        return


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of what is at `path`, without following a link."""
    status = os.stat(path, follow_symlinks=False)
    return status.st_dev, status.st_ino
