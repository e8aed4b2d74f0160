"""Fake nodes that use the native programs, and programs that run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nvml_scenario import Program


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
