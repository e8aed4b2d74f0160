"""The CDI devices of a folder, and what they change in an OCI configuration.

Knows the folder's rules (names, conflicts, order of injection); the rules of one file are `cdi_spec`'s. Source:
container-device-interface, pkg/cdi: cache.go, container-edits.go, which containerd calls while it makes a configuration.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_testkit import cdi_spec, oci
from vgpu_testkit.cdi_spec import CdiFile, DeviceNode, Edits, InvalidCdi

_PARSERS = {".json": cdi_spec.parse_json, ".yaml": cdi_spec.parse_yaml}


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiFolder:
    """What a folder offers now: the file of each qualified device name, and why other files or devices are left out."""

    devices: Mapping[str, CdiFile]
    faults: Mapping[str, str]


def read_folder(folder: Path, *, versions: Sequence[str] = cdi_spec.KNOWN_VERSIONS) -> CdiFolder:
    """Reads every .json and .yaml file of the folder itself; a folder that is missing offers nothing.

    A device that two files have is offered by neither.
    """
    return _collected(folder, lambda entry: _parse(Path(entry).suffix, Path(entry).read_text(), tuple(versions)))


class CdiCache:
    """What a folder offers, where each file is read once: for folders whose files are replaced whole, so that the inode differs.

    containerd, too, reads nothing when a container is made and nothing has changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int, int], CdiFile]] = {}

    def now(self) -> CdiFolder:
        """As `read_folder` would have it."""
        known, self._read = self._read, {}

        def read(entry: os.DirEntry[str]) -> CdiFile:
            status = entry.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            held = known.get(entry.name)
            if held is None or held[0] != version:
                held = version, _parse(Path(entry).suffix, Path(entry).read_text(), tuple(cdi_spec.KNOWN_VERSIONS))
            self._read[entry.name] = held
            return held[1]

        return _collected(self._folder, read)


def _collected(folder: Path, read: Callable[[os.DirEntry[str]], CdiFile]) -> CdiFolder:
    devices: dict[str, CdiFile] = {}
    faults: dict[str, str] = {}
    entries = [e for e in os.scandir(folder) if e.name.endswith(tuple(_PARSERS)) and not e.is_dir()] if folder.is_dir() else []
    for entry in sorted(entries, key=lambda e: e.name):
        try:
            file = read(entry)
        except (InvalidCdi, OSError, UnicodeDecodeError) as exc:
            faults[entry.name] = str(exc)
            continue
        for name in file.devices:
            qualified = f"{file.kind}={name}"
            if qualified in devices:
                faults[qualified] = f"conflicting device {qualified}"
            devices[qualified] = file
    return CdiFolder(devices={name: file for name, file in devices.items() if name not in faults}, faults=faults)


def inject(config: oci.Config, folder: CdiFolder, names: Iterable[str], *, lookup: oci.NodeLookup = oci.node_numbers) -> None:
    """Applies the devices in the order asked, those of their file first and once.

    Raises:
        RefusedConfig: a name is not offered, or a device node cannot be found on the host.
    """
    names = tuple(names)
    missing = [name for name in names if name not in folder.devices]
    if missing:
        raise oci.RefusedConfig(f"unresolvable CDI devices {', '.join(missing)}")
    seen: list[CdiFile] = []
    for name in names:
        file = folder.devices[name]
        if not any(file is one for one in seen):
            seen.append(file)
            apply_edits(config, file.edits, lookup=lookup)
        apply_edits(config, file.devices[name.partition("=")[2]], lookup=lookup)


def apply_edits(config: oci.Config, edits: Edits, *, lookup: oci.NodeLookup = oci.node_numbers) -> None:
    """Changes a configuration; mounts are sorted by depth afterwards where any came."""
    oci.set_env(config, edits.env)
    for node in edits.device_nodes:
        _add_node(config, node, lookup)
    for mount in edits.mounts:
        oci.put_mount(config, destination=mount.container_path, source=mount.host_path, type=mount.type, options=mount.options)
    if edits.mounts:
        oci.sort_mounts_by_depth(config)
    for name, hook in edits.hooks:
        config.setdefault("hooks", {}).setdefault(name, []).append(dict(hook))
    groups = config["process"]["user"]["additionalGids"]
    groups.extend(gid for gid in edits.additional_gids if gid and gid not in groups)


@functools.lru_cache(maxsize=1024)
def _parse(suffix: str, text: str, versions: tuple[str, ...]) -> CdiFile:
    """One file. A node with hundreds of claims has as many, and all of them are read for each container."""
    return _PARSERS[suffix](text, versions=versions)


def _add_node(config: oci.Config, node: DeviceNode, lookup: oci.NodeLookup) -> None:
    user = config["process"]["user"]
    kind, major, minor = node.type, node.major, node.minor
    if not (kind and (major or kind == "p")):
        kind, major, minor = _host_numbers(node, lookup)
    device: dict[str, Any] = {"path": node.path, "type": kind, "major": major, "minor": minor}
    if node.file_mode is not None:
        device["fileMode"] = node.file_mode
    for key, given, own in (("uid", node.uid, user["uid"]), ("gid", node.gid, user["gid"])):
        if given is not None or own > 0:
            device[key] = own if given is None else given
    oci.put_device(config, device, node.permissions or "rwm")


def _host_numbers(node: DeviceNode, lookup: oci.NodeLookup) -> tuple[str, int, int]:
    path = node.host_path or node.path
    try:
        kind, major, minor = lookup(path)
    except oci.RefusedConfig as exc:
        raise oci.RefusedConfig(f'failed to stat CDI host device "{path}": {exc}') from exc
    if node.type and node.type != kind:
        raise oci.RefusedConfig(f'CDI device ("{node.path}", "{path}"), host type mismatch ({node.type}, {kind})')
    if node.major:
        return kind, node.major, node.minor
    return kind, major, minor
