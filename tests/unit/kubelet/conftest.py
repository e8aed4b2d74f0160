"""A kubelet's folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def kubelet_dir(short_dir: Path) -> Path:
    return short_dir
