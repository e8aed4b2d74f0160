"""What the documents name is there, and what a reader looks up is in them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from vgpu_daemon import options
from vgpu_daemon.options import Option
from vgpu_dra.event_documents import Reason
from vgpu_dra.policy import health

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "OPERATIONS.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCUMENTS = {path.name: path.read_text() for path in sorted(ROOT.glob("*.md"))}

# Histograms and gauges are shown under the name that the code gives them; a counter's ends in `_total`.
_METRIC = re.compile(r'(Counter|Gauge|Histogram|\.gauge)\(\s*"(vgpu_[a-z_]+)"')


def metrics_of_the_code() -> set[str]:
    sources = [path.read_text() for path in ROOT.glob("services/*/src/**/*.py")]
    found = [match.groups() for source in sources for match in _METRIC.finditer(source)]
    return {f"{name}_total" if kind == "Counter" else name for kind, name in found}


def test_operations_lists_every_metric_and_no_other() -> None:
    table = OPERATIONS.partition("## Metrics")[2]

    assert len(metrics_of_the_code()) > 25
    assert set(re.findall(r"`(vgpu_[a-z_]+)`", table)) == metrics_of_the_code()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_names_a_metric_that_is_not_there(name: str) -> None:
    named = set(re.findall(r"`(vgpu_(?:dra|nri|registr|pid)[a-z_]*_[a-z_]+)`", DOCUMENTS[name]))

    assert named - metrics_of_the_code() == set()


def test_operations_lists_the_reason_of_every_event() -> None:
    assert set(re.findall(r"`(Vgpu[A-Za-z]+)`", OPERATIONS)) == {str(reason) for reason in Reason}


def test_operations_lists_every_taint() -> None:
    assert set(re.findall(r"^\| `(manager\.nvidia\.com/[a-z-]+)`", OPERATIONS, re.M)) == set(health.KEYS)


@pytest.mark.parametrize("name", ["README.md", "OPERATIONS.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_every_flag_that_a_document_names_is_an_option(name: str) -> None:
    known = {f"--{option.name}" for option in vars(options).values() if isinstance(option, Option)}
    # Of any program, curl, kubectl and kube-apiserver.
    foreign = {"--help", "--unix-socket", "--field-selector", "--all-containers", "--runtime-config"}

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", DOCUMENTS[name])) - foreign - known == set()


def test_every_home_of_a_rule_is_a_module() -> None:
    table = ARCHITECTURE.partition("## Where each rule lives")[2].partition("\n## ")[0]
    homes = {one for named in re.findall(r"`(vgpu_[a-z_.{},]+)`", table) for one in _spelled_out(named)}

    assert len(homes) > 40
    assert {home for home in homes if importlib.util.find_spec(home) is None} == set()


def _spelled_out(name: str) -> list[str]:
    """`a.{b,c}` is a.b and a.c."""
    before, brace, after = name.partition("{")
    return [before + one for one in after.removesuffix("}").split(",")] if brace else [name]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(name: str) -> None:
    named = re.findall(r"\]\(([^)#:]+)\)|`((?:deploy|examples|benchmarks|components|overlays|tests)/[\w./-]+)`", DOCUMENTS[name])
    paths = {link or path for link, path in named}
    places = [ROOT, ROOT / "deploy/kustomize"]

    assert {path for path in paths if not any((place / path).exists() for place in places)} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_that_a_document_names_is_there(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for words in re.findall(r"`?make ((?:[a-z-]+ ?)+)`", DOCUMENTS[name]) for word in words.split()}

    assert named - targets == set()
