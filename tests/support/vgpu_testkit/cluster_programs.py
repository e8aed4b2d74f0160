"""Where the programs of a real cluster are: Kubernetes releases with their etcd and CNI plugins, from `make cluster`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_RELEASE = "1.37"

# On by default or not: named, so that a later patch's default changes nothing here.
_GATES = (
    "DRAConsumableCapacity",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
)
_GATES_SINCE = {"1.37": ("DRAFractionalCapacityRange",)}
# DeviceTaintRule is of v1 since 1.37; before, its version is off unless named.
_RUNTIME_CONFIG = {"1.36": ("resource.k8s.io/v1beta2=true",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """One release's programs. `release` is its line, "1.37"; `version` the release itself, "v1.37.2"."""

    release: str
    version: str
    folder: Path

    @property
    def cni(self) -> Path:
        """The folder of the CNI plugins."""
        return self.folder / "cni"

    @property
    def feature_gates(self) -> dict[str, bool]:
        """What dynamic resource allocation with shares, partitions, taints and health needs in this release."""
        return dict.fromkeys((*_GATES, *_GATES_SINCE.get(self.release, ())), True)

    @property
    def runtime_config(self) -> tuple[str, ...]:
        """What the API server must be asked to serve beyond its defaults."""
        return _RUNTIME_CONFIG.get(self.release, ())


def find_programs() -> dict[str, Programs]:
    """The built releases by line, the newest patch of each."""
    found: dict[str, Programs] = {}
    for mark in sorted(_cache_folder().glob("v*/BUILT"), key=lambda path: _numbers(path.parent.name)):
        version = mark.parent.name
        line = ".".join(str(number) for number in _numbers(version)[:2])
        found[line] = Programs(release=line, version=version, folder=mark.parent)
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _cache_folder() -> Path:
    """Where tests/cluster/build.sh puts them."""
    base = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "/var/cache")
    return Path(base) / "vgpu-cluster"
