"""A node on disk for the state of dra-plugin."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from vgpu_testkit.dra_tree import DraTree


@pytest.fixture
def node(tmp_path: Path) -> DraTree:
    return DraTree(root=tmp_path)


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Within the context no file can grow beyond so many bytes: a write ends part of the way with EFBIG, as one does with
    ENOSPC on a full disk.
    """

    @contextmanager
    def fill(size_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return fill
