"""Programs that call NVML through the unmodified nvidia-ml-py, each in a process of its own: pynvml keeps one library globally.

A scenario is Python text that gets `n` (pynvml with the node's library), `tell(value)` for one line of JSON to the test, `wait()`
for the test's word to go on, and `code(function, *arguments)` for the error code of a call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

from vgpu_testkit.node import Node

PRELUDE = """
import ctypes, json, sys, threading
import pynvml as n
n.nvmlLib = ctypes.CDLL(sys.argv[1])
def tell(value):
    print(json.dumps(value), flush=True)
def wait():
    sys.stdin.readline()
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
"""


class Program:
    """A running scenario; `hear` is the next value it tells."""

    def __init__(self, node: Node, scenario: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(scenario), node.nvml_library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def go_on(self) -> None:
        """Lets its `wait()` return."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        return json.loads(line)

    def complaint(self) -> str:
        """All it wrote to stderr, when it has ended."""
        return self._process.communicate()[1]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def hear_once(node: Node, scenario: str) -> Any:
    """The first value that a scenario tells, which is ended then."""
    program = Program(node, scenario)
    try:
        return program.hear()
    finally:
        program.end()
