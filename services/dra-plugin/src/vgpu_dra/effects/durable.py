"""Whole-file writes that survive a power cut, and the removal that is a rename. The only writer of bytes in this process.

Every function is one step that either happened or did not; what an interrupted one leaves has a name that begins with
`.new-` (in the CDI directory: with a dot), which no reader sees and the next start removes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpu_state.errors import StorageFailed
from vgpu_state.layout import TEMPORARY_PREFIX

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def storage(action: str, path: Path) -> Iterator[None]:
    """Turns an OSError of the block into the refusal that names the path and the errno."""
    try:
        yield
    except OSError as exc:
        raise StorageFailed(action=action, path=str(path), error=exc) from exc


def replace_file(path: Path, content: bytes, *, mode: int, temporary: Path | None = None) -> None:
    """`path` has `content` for good: temp file, fsync, rename, fsync of the directory."""
    _replace(path, content, mode=mode, temporary=temporary, is_durable=True)


def replace_file_unsynced(path: Path, content: bytes, *, mode: int) -> None:
    """`path` has `content` for all readers, until a power cut."""
    _replace(path, content, mode=mode, temporary=None, is_durable=False)


def write_new_file(path: Path, content: bytes, *, mode: int) -> None:
    """A file in a directory that nobody reads yet."""
    with storage("write", path):
        _write(path, content, mode=mode, is_durable=False)


def make_directory(path: Path, *, mode: int) -> None:
    """The directory exists with this mode (given the process's umask of 022); an existing one is left as it is."""
    with storage("make directory", path):
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not path.is_dir():
                raise


def sync_directory(path: Path) -> None:
    """Entries made, renamed or removed in `path` so far survive a power cut."""
    with storage("sync directory", path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def rename(source: Path, destination: Path) -> None:
    with storage("rename", source):
        os.rename(source, destination)


def remove_file(path: Path) -> bool:
    """Whether there was a file to remove."""
    with storage("remove", path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
    return True


def remove_tree(path: Path) -> None:
    """`path` and all below it are gone. Follows no link, and does not mind another thread that removes it too."""
    with storage("remove", path), suppress(FileNotFoundError):
        for _, directories, files, fd in os.fwalk(path, topdown=False):
            for name in files:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)
            for name in directories:
                _remove_directory(name, fd)
        _remove_directory(os.fspath(path), None)


def _remove_directory(name: str, fd: int | None) -> None:
    with suppress(FileNotFoundError):
        try:
            os.rmdir(name, dir_fd=fd)
        except NotADirectoryError:  # a link to a directory, which fwalk lists among the directories
            os.unlink(name, dir_fd=fd)


def _replace(path: Path, content: bytes, *, mode: int, temporary: Path | None, is_durable: bool) -> None:
    temporary = temporary or path.with_name(TEMPORARY_PREFIX + path.name)
    with storage("write", path):
        try:
            _write(temporary, content, mode=mode, is_durable=is_durable)
            os.rename(temporary, path)
        except OSError:
            # On a full disk what was written of it is what keeps it full.
            with suppress(OSError):
                os.unlink(temporary)
            raise
    if is_durable:
        sync_directory(path.parent)


def _write(path: Path, content: bytes, *, mode: int, is_durable: bool) -> None:
    fd = os.open(path, _WRITE, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if is_durable:
            os.fsync(fd)
    finally:
        os.close(fd)
