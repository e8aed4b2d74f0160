"""The native programs, built once a session."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def native() -> Path:
    """The directory the Makefile of tests/native builds into, up to date."""
    subprocess.run(["make", "--silent", "-C", str(REPOSITORY / "tests/native")], check=True)
    return REPOSITORY / "build/native"
