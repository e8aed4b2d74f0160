"""The native programs, built once a session, and fake nodes that use them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nvml_scenario import Program

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def native() -> Path:
    """The directory the Makefile of tests/native builds into, up to date."""
    subprocess.run(["make", "--silent", "-C", str(REPOSITORY / "tests/native")], check=True)
    return REPOSITORY / "build/native"


@pytest.fixture
def start() -> Iterator[Callable[[Node, str], Program]]:
    programs: list[Program] = []

    def begin(node: Node, scenario: str) -> Program:
        programs.append(Program(node, scenario))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


@pytest.fixture
def node(tmp_path: Path, native: Path) -> Node:
    return build_node(tmp_path / "node", native=native)
