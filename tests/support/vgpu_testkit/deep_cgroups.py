"""Cgroups that a container has made below its own, each in the one before: as deep as no path can be long."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class DeepCgroups:
    """Makes them, as folders with a cgroup.procs each; `made` takes them away again."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def below(self, own: Path, levels: int, *, pid: int | None = None) -> None:
        """So many levels below the folder `own`, with `pid` in the lowest."""
        # Not shutil.rmtree() later: it is recursive.
        self._stack.callback(subprocess.run, ["rm", "-rf", str(own / "deeper")], check=True)
        fd = os.open(own, os.O_RDONLY)
        for level in range(1, levels + 1):
            os.mkdir("deeper", dir_fd=fd)
            above, fd = fd, os.open("deeper", os.O_RDONLY, dir_fd=fd)
            os.close(above)
            procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
            if level == levels and pid is not None:
                os.write(procs, b"%d\n" % pid)
            os.close(procs)
        os.close(fd)


@contextmanager
def made() -> Iterator[DeepCgroups]:
    with ExitStack() as stack:
        yield DeepCgroups(stack)
