"""Rules of the tree that a machine can see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 300
VAGUE = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "base.py"}


def tracked(*patterns: str) -> list[Path]:
    shown = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in shown.splitlines() if (ROOT / line).exists()]


def hand_written() -> list[Path]:
    return [p for p in tracked("*.py") if "_gen" not in p.parts]


def test_modules_of_the_services_have_at_most_300_lines() -> None:
    sources = [p for p in hand_written() if "src" in p.parts or "support" in p.parts or "demo" in p.parts]

    long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > MAX_LINES}

    assert long == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [p for p in hand_written() if p.name in VAGUE] == []


def test_every_module_says_what_it_is() -> None:
    silent = [str(p.relative_to(ROOT)) for p in hand_written() if p.stat().st_size and not p.read_text().startswith('"""')]

    assert silent == []


@pytest.mark.parametrize("name", ["requirements.lock", "benchmarks/requirements.lock"])
def test_no_lock_file_carries_an_address(name: str) -> None:
    lock = (ROOT / name).read_text()

    assert "://" not in lock
    assert "--hash=sha256:" in lock


def test_the_lock_has_what_the_distributions_ask_for() -> None:
    lock = {m.lower() for m in re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.lock").read_text(), re.M)}
    wanted = set()
    for project in tracked("shared/*/pyproject.toml", "services/*/pyproject.toml"):
        block = re.search(r"^dependencies = \[(.*?)\]", project.read_text(), re.M | re.S)
        assert block is not None, project
        wanted |= {re.split(r"[=<>~\[]", d)[0] for d in re.findall(r'"([^"]+)"', block[1])}

    assert {w for w in wanted if not w.startswith("vgpu-")} - lock == set()


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")

    result = subprocess.run([lint_imports], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout


def test_generated_messages_are_fresh() -> None:
    generator = ROOT / "shared/proto/generate.py"

    result = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, "")


def module_names() -> list[str]:
    """Every module of the distributions, by its import name."""
    relative = (str(p.relative_to(ROOT)).partition("/src/")[2] for p in hand_written() if "src" in p.relative_to(ROOT).parts)
    return sorted(r.removesuffix(".py").replace("/", ".") for r in relative if not r.endswith(("__init__.py", "__main__.py")))


@pytest.mark.parametrize("package", ["vgpu_state", "vgpu_daemon", "vgpu_dra", "vgpu_nri", "vgpu_registry"])
def test_each_module_can_be_imported_first(package: str) -> None:
    """A cycle hides behind whoever was imported before; one interpreter per module would take minutes, a fork does not."""
    names = [m for m in module_names() if m.split(".")[0] == package]
    program = (
        "import os, sys, importlib\n"
        "failed = []\n"
        "for name in sys.argv[1:]:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except BaseException as exc:\n"
        "            print(name, repr(exc))\n"
        "            sys.stdout.flush()\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(pid, 0)[1]:\n"
        "        failed.append(name)\n"
        "sys.exit(bool(failed))\n"
    )

    result = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=False)

    assert names
    assert (result.returncode, result.stdout) == (0, "")
