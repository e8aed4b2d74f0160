"""Where an option's value comes from, and what a wrong command line gets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from vgpu_daemon import options
from vgpu_daemon.options import Option

COLOUR = Option("wall-colour", "white", "which paint")
OTHER = Option("wall-height", "3", "how high")


def parsed(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    return options.parse("vgpu-x", [COLOUR, OTHER], argv, environ)


@pytest.mark.parametrize(
    ("argv", "environ", "colour"),
    [
        ([], {}, "white"),
        ([], {"VGPU_WALL_COLOUR": "red"}, "red"),
        (["--wall-colour", "blue"], {"VGPU_WALL_COLOUR": "red"}, "blue"),
        (["--wall-colour=blue"], {}, "blue"),
        (["--wall-colour="], {"VGPU_WALL_COLOUR": "red"}, ""),
        ([], {"VGPU_WALL_COLOUR": ""}, ""),
        ([], {"WALL_COLOUR": "red", "VGPU_wall_colour": "red"}, "white"),
    ],
)
def test_command_line_comes_before_environment_before_default(
    argv: Sequence[str], environ: Mapping[str, str], colour: str
) -> None:
    assert parsed(argv, environ) == {"wall-colour": colour, "wall-height": "3"}


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ("['--ceiling', '1']", "unknown argument --ceiling"),
        ("['blue']", "unknown argument blue"),
        ("['--wall-colour']", "argument --wall-colour: expected one argument"),
        ("['--wall-c', 'blue']", "unknown argument --wall-c"),
        ("['--wall', 'blue']", "unknown argument --wall"),
    ],
)
def test_wrong_command_line_is_exit_2_with_usage_and_complaint(argv: str, complaint: str) -> None:
    program = (
        "from vgpu_daemon.options import Option, parse\n"
        f"parse('vgpu-x', [Option('wall-colour', '', ''), Option('wall-height', '', '')], {argv}, {{}})"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    lines = (done.stdout + done.stderr).splitlines()
    assert lines[0].startswith("usage: vgpu-x [-h] [--wall-colour WALL_COLOUR]")
    assert lines[-1] == f"vgpu-x: {complaint}"


def test_help_tells_each_option_with_its_variable_and_its_own_default() -> None:
    program = (
        "from vgpu_daemon.options import Option, parse\n"
        "given = [Option('colour', 'white', '100 % paint'), Option('wood', '', 'which floor')]\n"
        "parse('vgpu-x', given, ['--help'], {'VGPU_COLOUR': 'red'})"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"COLUMNS": "200"})

    assert done.returncode == 0
    assert [line.strip() for line in done.stdout.splitlines()[-2:]] == [
        "--colour COLOUR  100 % paint [VGPU_COLOUR; default white]",
        "--wood WOOD      which floor [VGPU_WOOD]",
    ]


def test_every_option_has_its_environment_variable() -> None:
    assert options.MANAGER_DIR.env == "VGPU_MANAGER_DIR"
    assert options.HTTP_LISTEN.env == "VGPU_HTTP_LISTEN"
