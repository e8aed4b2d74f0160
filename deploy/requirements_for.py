"""The part of requirements.lock that one service needs, hashes and all.

Runs where the whole lock is installed: what a package needs is asked of its installed metadata. Knows our own distributions from
their pyproject.toml and leaves them out of the answer, since they are built from the tree.

    python deploy/requirements_for.py dra-plugin
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def own_distributions(service: str, *, root: Path) -> dict[NormalizedName, Path]:
    """The distributions of this tree that make up `service`, itself first: directory below `root` by name."""
    known = dict(_projects(root))
    found: dict[NormalizedName, Path] = {}
    waiting = [_project_name(root / "services" / service)]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = known[name]
            waiting += [canonicalize_name(r.name) for r in _declared(root / known[name])]
    return found


def needed_names(service: str, *, root: Path) -> frozenset[NormalizedName]:
    """Every foreign package that `service` needs here, directly or not.

    Raises:
        importlib.metadata.PackageNotFoundError: one of them is not installed.
    """
    own = own_distributions(service, root=root)
    waiting = [r for path in own.values() for r in _declared(root / path)]
    needed: set[NormalizedName] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in own or (key := (name, frozenset(requirement.extras))) in seen:
            continue
        seen.add(key)
        needed.add(name)
        waiting += _installed_needs(name, extras=requirement.extras)
    return frozenset(needed)


def lock_entries(lock: str) -> dict[NormalizedName, str]:
    """Each package's lines of the lock by its name: the pinned version and the hashes that continue it."""
    entries: dict[NormalizedName, str] = {}
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        name = _NAME.match(entry)
        if name is not None:
            entries[canonicalize_name(name[0])] = entry + "\n"
    return entries


def subset(service: str, *, root: Path) -> str:
    """The lines of the lock that `service` needs, in the lock's order.

    Raises:
        KeyError: it needs a package that the lock has not.
    """
    entries = lock_entries((root / "requirements.lock").read_text())
    needed = needed_names(service, root=root)
    if missing := needed - entries.keys():
        raise KeyError(f"requirements.lock has no {', '.join(sorted(missing))}")
    return "".join(entry for name, entry in entries.items() if name in needed)


def _projects(root: Path) -> Iterator[tuple[NormalizedName, Path]]:
    for path in sorted(root.glob("*/*/pyproject.toml")):
        yield _project_name(path.parent), path.parent.relative_to(root)


def _project_name(directory: Path) -> NormalizedName:
    return canonicalize_name(_project(directory)["name"])


def _declared(directory: Path) -> Iterable[Requirement]:
    return [Requirement(text) for text in _project(directory)["dependencies"]]


def _project(directory: Path) -> Mapping[str, Any]:  # Any: what TOML can hold
    project: Mapping[str, Any] = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    return project


def _installed_needs(name: NormalizedName, *, extras: Iterable[str]) -> list[Requirement]:
    declared = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return [r for r in declared if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in ("", *extras))]


def main() -> None:
    services = sorted(path.parent.name for path in ROOT.glob("services/*/pyproject.toml"))
    if len(sys.argv) != 2 or sys.argv[1] not in services:
        sys.exit(f"requirements_for.py: say which service: {', '.join(services)}")
    try:
        sys.stdout.write(subset(sys.argv[1], root=ROOT))
    except (KeyError, importlib.metadata.PackageNotFoundError) as exc:
        sys.exit(f"requirements_for.py: {exc}; install requirements.lock first")


if __name__ == "__main__":
    main()
