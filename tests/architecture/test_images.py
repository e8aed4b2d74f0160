"""The Dockerfiles and what they install: one service each, with the part of the lock that its imports need."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {"dra-plugin": "vgpu_dra", "nri-plugin": "vgpu_nri", "registry": "vgpu_registry"}
SHARED = {"shared/state", "shared/daemon", "shared/proto"}


@pytest.fixture(scope="module")
def requirements_for() -> Any:  # Any: a module outside of every package
    spec = importlib.util.spec_from_file_location("requirements_for", ROOT / "deploy/requirements_for.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _instructions(service: str, name: str) -> list[list[str]]:
    """The arguments of each `name` instruction, options such as --from left out, lines that go on joined."""
    text = (ROOT / "services" / service / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{name} ")]
    return [[word for word in words[1:] if not word.startswith("--")] for words in lines if "--from=build" not in words]


def _imported(directory: Path) -> set[str]:
    """Top-level names that the modules below `directory` import, wherever in the module."""
    names: set[str] = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("service", MODULES)
def test_every_path_that_is_copied_exists(service: str) -> None:
    copied = [source for words in _instructions(service, "COPY") for source in words[:-1]]

    assert [source for source in copied if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("service", MODULES)
def test_an_image_holds_its_service_and_what_it_depends_on_but_no_sibling(service: str, requirements_for: Any) -> None:
    copied = {source for words in _instructions(service, "COPY") for source in words[:-1]}
    text = (ROOT / "services" / service / "Dockerfile").read_text()
    built = set(re.findall(r"\./((?:shared|services)/[a-z-]+)", text))

    assert built == SHARED | {f"services/{service}"}
    assert built == {str(path) for path in requirements_for.own_distributions(service, root=ROOT).values()}
    assert copied == built | {"requirements.lock", "deploy/requirements_for.py"}


@pytest.mark.parametrize(("service", "module"), MODULES.items())
def test_an_image_starts_the_module_of_its_service(service: str, module: str) -> None:
    assert (ROOT / "services" / service / "src" / module / "__main__.py").is_file()
    assert _instructions(service, "ENTRYPOINT") == [['["python",', '"-m",', f'"{module}"]']]


@pytest.mark.parametrize("service", MODULES)
def test_the_subset_of_the_lock_covers_every_import_of_the_service(service: str, requirements_for: Any) -> None:
    needed = requirements_for.needed_names(service, root=ROOT)
    own = requirements_for.own_distributions(service, root=ROOT).values()
    imported = {name for path in own for name in _imported(ROOT / path / "src")}
    foreign = {name for name in imported - sys.stdlib_module_names if not name.startswith("vgpu_")}
    providers = importlib.metadata.packages_distributions()

    uncovered = {name for name in foreign if not {_canonical(p) for p in providers.get(name, [])} & needed}
    assert uncovered == set()


@pytest.mark.parametrize("service", MODULES)
def test_every_line_of_the_subset_is_a_line_of_the_lock_with_its_hashes(service: str, requirements_for: Any) -> None:
    subset = requirements_for.subset(service, root=ROOT)

    assert set(subset.splitlines()) <= set((ROOT / "requirements.lock").read_text().splitlines())
    entries = requirements_for.lock_entries(subset)
    assert set(entries) == requirements_for.needed_names(service, root=ROOT)
    assert [name for name, lines in entries.items() if "--hash=sha256:" not in lines] == []


def test_no_image_has_a_development_tool_and_only_dra_plugin_has_clients_of_its_own(requirements_for: Any) -> None:
    needed = {service: requirements_for.needed_names(service, root=ROOT) for service in MODULES}
    tools = {"pytest", "mypy", "ruff", "hypothesis", "grpcio-tools", "hatchling", "black", "setuptools"}

    assert {service for service, names in needed.items() if names & tools} == set()
    assert needed["nri-plugin"] == needed["registry"]
    assert needed["dra-plugin"] - needed["registry"] == {"kubernetes-asyncio", "nvidia-ml-py", "pyyaml", "certifi", "urllib3"}


def test_a_lock_is_read_entry_by_entry_with_names_as_the_index_spells_them(requirements_for: Any) -> None:
    lock = (
        "# a comment\n"
        "Typing_Extensions==4.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "colorama==0.4 ; sys_platform == 'win32' \\\n    --hash=sha256:cc\n"
    )

    assert requirements_for.lock_entries(lock) == {
        "typing-extensions": "Typing_Extensions==4.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n",
        "colorama": "colorama==0.4 ; sys_platform == 'win32' \\\n    --hash=sha256:cc\n",
    }


def test_a_need_that_the_lock_lacks_is_named(requirements_for: Any, tmp_path: Path) -> None:
    (tmp_path / "services/one").mkdir(parents=True)
    (tmp_path / "services/one/pyproject.toml").write_text('[project]\nname = "one"\ndependencies = ["six", "structlog"]\n')
    (tmp_path / "requirements.lock").write_text("six==1.17.0 \\\n    --hash=sha256:aa\n")

    with pytest.raises(KeyError, match=r"requirements\.lock has no structlog"):
        requirements_for.subset("one", root=tmp_path)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
