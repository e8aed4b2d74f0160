"""A walk over the cgroups below one, however deep: whoever may make them must not be able to hide any, nor to end us.

By directory file descriptors and one at a time: a path may be longer than the kernel takes, and a tree may be deeper than
Python's stack and have more levels than a process may have files open.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_DIRECTORIES = 10_000  # a full node has some thousands; a container that makes more below its own is not read to the end
GONE = frozenset({errno.ENOENT, errno.ENODEV})  # ENODEV: a file of a cgroup that was removed after it was opened
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Step(enum.Enum):
    """Where a walk goes after a directory: into it, past it, or nowhere any more."""

    DESCEND = enum.auto()
    SKIP = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory on the way down: which one it is, and which of those in it are still to be visited."""

    identity: tuple[int, int]
    pending: list[str]


class _Position:
    """Where a walk is: one open directory, the names that lead there, and what is left to visit on each level."""

    def __init__(self, fd: int, at_most: int) -> None:
        self.fd = fd
        self.names: list[str] = []
        self.is_complete = True
        self._left = at_most - 1
        self._levels: list[_Level] = []

    def enter(self, *, descend: bool) -> None:
        """Takes on the directories in this one, as many as may still be visited."""
        pending: list[str] = []
        self._levels.append(_Level(_identity(self.fd), pending))
        if not descend:
            return
        try:
            with os.scandir(self.fd) as entries:
                for name in (e.name for e in entries if e.is_dir(follow_symlinks=False)):
                    if not self._left:
                        self.is_complete = False
                        break
                    self._left -= 1
                    pending.append(name)
        except OSError as exc:
            self._missed(exc)

    def advance(self) -> bool:
        """Goes to the next directory that is to be visited, up from here where none is left; False at the end.

        Raises:
            OSError: the way back up is barred.
        """
        while self._levels:
            pending = self._levels[-1].pending
            if pending:
                if self._down(pending.pop()):
                    return True
                continue
            self._levels.pop()
            if self._levels and not self._up():
                return False
        return False

    def _down(self, name: str) -> bool:
        try:
            self._go(name)
        except OSError as exc:
            self._missed(exc)
            return False
        self.names.append(name)
        return True

    def _up(self) -> bool:
        self._go("..")
        self.names.pop()
        if _identity(self.fd) != self._levels[-1].identity:
            self.is_complete = False  # moved meanwhile: what is above is none of ours
            return False
        return True

    def _go(self, name: str) -> None:
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = fd

    def _missed(self, error: OSError) -> None:
        self.is_complete &= error.errno in GONE  # a directory that is gone has nothing to miss


def walk(top: Path, visit: Callable[[int, Sequence[str]], Step], *, at_most: int = MAX_DIRECTORIES) -> bool:
    """Visits `top` and the directories below it, at most `at_most`, each before those in it.

    `visit` gets an open descriptor of the directory and the names that lead to it from `top`, both good for the call only.

    Returns:
        False when some were not visited though no visit said so: an error other than "gone", or more than `at_most`.
    """
    try:
        at = _Position(os.open(top, _DIRECTORY), at_most)
    except OSError as exc:
        return exc.errno in GONE
    try:
        is_further = True
        while is_further:
            step = visit(at.fd, at.names)
            if step is Step.STOP:
                break
            at.enter(descend=step is Step.DESCEND)
            is_further = at.advance()
    except OSError:
        return False
    finally:
        os.close(at.fd)
    return at.is_complete


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
