"""One CDI file → its devices, read as strictly as the library in containerd reads it.

Owns the rules of a file: keys, versions, names, what must not be empty. Does not know folders or containers. Source: CDI
specification, specs-go/config.go and pkg/cdi of container-device-interface 0.7 and 1.0, which containerd 1.7 and 2.1 hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import yaml

T = TypeVar("T")

# Both releases of the library know up to 0.7.0; the later one also 0.8.0 and 1.0.0, which brought no field.
KNOWN_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
KNOWN_TO_0_7 = KNOWN_VERSIONS[:7]

_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
_VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class InvalidCdi(ValueError):
    """Raised when a CDI file breaks a rule; the runtime leaves such a file out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A node to appear at `path`; what is empty or None is looked up at the host's node."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiMount:
    """A mount of the host's `host_path` at `container_path`."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a container gets; `hooks` are names of the OCI life cycle with the hook's own object."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[tuple[str, Mapping[str, object]], ...] = ()
    additional_gids: tuple[int, ...] = ()
    has_rdt: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing at all."""
        return self == Edits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiFile:
    """A valid file: the edits for each of its devices, and those of any of them."""

    kind: str
    edits: Edits
    devices: Mapping[str, Edits]


def parse_json(text: str, *, versions: Sequence[str] = KNOWN_VERSIONS) -> CdiFile:
    """A .json file.

    Raises:
        InvalidCdi: it breaks a rule, or `versions` lack its version.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as exc:
        raise InvalidCdi(f"not JSON: {exc}") from exc
    return _file(raw, versions)


def parse_yaml(text: str, *, versions: Sequence[str] = KNOWN_VERSIONS) -> CdiFile:
    """A .yaml file; refused as `parse_json` refuses."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise InvalidCdi(f"not YAML: {exc}") from exc
    return _file(raw, versions)


def _file(raw: object, versions: Sequence[str]) -> CdiFile:
    spec = _Object(raw, "spec", ("cdiVersion", "kind", "annotations", "devices", "containerEdits"))
    version = spec.text("cdiVersion").removeprefix("v")
    if version not in versions:
        raise InvalidCdi(f'invalid version "{version}"')
    kind = spec.text("kind")
    _check_kind(kind)
    devices: dict[str, Edits] = {}
    annotated = bool(spec.mapping("annotations"))
    for device in spec.objects("devices", ("name", "annotations", "containerEdits")):
        name = device.text("name")
        if not _DEVICE_NAME.match(name):
            raise InvalidCdi(f'invalid device name "{name}"')
        if name in devices:
            raise InvalidCdi(f'multiple devices with the same name "{name}"')
        devices[name] = _edits(device.get("containerEdits"))
        annotated = annotated or bool(device.mapping("annotations"))
        if devices[name].is_empty:
            raise InvalidCdi(f'invalid device "{name}", empty device edits')
    if not devices:
        raise InvalidCdi("invalid spec, no devices")
    file = CdiFile(kind=kind, edits=_edits(spec.get("containerEdits")), devices=devices)
    needed = _minimum_version(file, annotated=annotated)
    if _ordinal(version) < _ordinal(needed):
        raise InvalidCdi(f"the spec version must be at least v{needed}, but was v{version}")
    return file


def _check_kind(kind: str) -> None:
    vendor, slash, device_class = kind.partition("/")
    if not slash or "/" in device_class:
        raise InvalidCdi(f'invalid kind "{kind}", one slash is needed')
    for part in (vendor, device_class):
        if not _VENDOR_OR_CLASS.match(part):
            raise InvalidCdi(f'invalid vendor or class "{part}"')


def _ordinal(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _minimum_version(file: CdiFile, *, annotated: bool) -> str:
    """The lowest version that has every feature used."""
    every = (file.edits, *file.devices.values())
    if any(edits.has_rdt or edits.additional_gids for edits in every):
        return "0.7.0"
    if annotated or "." in file.kind.partition("/")[2]:
        return "0.6.0"
    if any(name[0].isdigit() for name in file.devices) or any(n.host_path for edits in every for n in edits.device_nodes):
        return "0.5.0"
    if any(mount.type for edits in every for mount in edits.mounts):
        return "0.4.0"
    return "0.3.0"


def _edits(raw: object) -> Edits:
    keys = ("env", "deviceNodes", "hooks", "mounts", "intelRdt", "additionalGids")
    edits = _Object({} if raw is None else raw, "containerEdits", keys)
    env = edits.texts("env")
    for entry in env:
        if entry.find("=") < 1:
            raise InvalidCdi(f'invalid environment variable "{entry}"')
    node_keys = ("path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid")
    return Edits(
        env=env,
        device_nodes=tuple(_device_node(node) for node in edits.objects("deviceNodes", node_keys)),
        mounts=tuple(_mount(one) for one in edits.objects("mounts", ("hostPath", "containerPath", "options", "type"))),
        hooks=tuple(_hook(one) for one in edits.objects("hooks", ("hookName", "path", "args", "env", "timeout"))),
        additional_gids=edits.numbers("additionalGids"),
        has_rdt=edits.get("intelRdt") is not None,
    )


def _device_node(node: _Object) -> DeviceNode:
    if not node.text("path"):
        raise InvalidCdi("invalid (empty) device path")
    if node.text("type") not in ("", "b", "c", "u", "p"):
        raise InvalidCdi(f'device "{node.text("path")}": invalid type "{node.text("type")}"')
    if set(node.text("permissions")) - set("rwm"):
        raise InvalidCdi(f'device "{node.text("path")}": invalid permissions "{node.text("permissions")}"')
    return DeviceNode(
        path=node.text("path"),
        host_path=node.text("hostPath"),
        type=node.text("type"),
        major=node.number("major") or 0,
        minor=node.number("minor") or 0,
        file_mode=node.number("fileMode"),
        permissions=node.text("permissions"),
        uid=node.number("uid"),
        gid=node.number("gid"),
    )


def _mount(mount: _Object) -> CdiMount:
    if not mount.text("hostPath"):
        raise InvalidCdi("invalid mount, empty host path")
    if not mount.text("containerPath"):
        raise InvalidCdi("invalid mount, empty container path")
    return CdiMount(
        host_path=mount.text("hostPath"),
        container_path=mount.text("containerPath"),
        options=mount.texts("options"),
        type=mount.text("type"),
    )


def _hook(hook: _Object) -> tuple[str, Mapping[str, object]]:
    name = hook.text("hookName")
    if name not in _HOOK_NAMES:
        raise InvalidCdi(f'invalid hook name "{name}"')
    if not hook.text("path"):
        raise InvalidCdi(f'invalid hook "{name}" with empty path')
    args, env = hook.texts("args"), hook.texts("env")
    timeout = hook.number("timeout")
    return name, {"path": hook.text("path"), "args": list(args), "env": list(env)} | ({"timeout": timeout} if timeout else {})


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidCdi(f'key "{key}" twice')
        found[key] = value
    return found


class _Object:
    """An object of the file: an absent or null key reads as its type's empty value, an unknown one is refused."""

    def __init__(self, raw: object, where: str, known: Sequence[str]) -> None:
        if not isinstance(raw, dict):
            raise InvalidCdi(f"{where} is no object")
        for key in raw:
            if key not in known:
                raise InvalidCdi(f'{where} has an unknown field "{key}"')
        self._raw = raw
        self._where = where

    def get(self, key: str) -> object:
        """The value as it stands; None where it is absent."""
        return self._raw.get(key)

    def text(self, key: str) -> str:
        return self._typed(key, self._raw.get(key), str) or ""

    def number(self, key: str) -> int | None:
        return self._typed(key, self._raw.get(key), int)

    def mapping(self, key: str) -> Mapping[str, object]:
        return self._typed(key, self._raw.get(key), dict) or {}

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._typed(key, value, str) or "" for value in self._list(key))

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(self._typed(key, value, int) or 0 for value in self._list(key))

    def objects(self, key: str, known: Sequence[str]) -> tuple[_Object, ...]:
        return tuple(_Object(value, f"{self._where}.{key}", known) for value in self._list(key))

    def _list(self, key: str) -> list[object]:
        return self._typed(key, self._raw.get(key), list) or []

    def _typed(self, key: str, value: object, kind: type[T]) -> T | None:
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidCdi(f"{self._where}.{key} is of type {type(value).__name__}; expected {kind.__name__}")
        return value
