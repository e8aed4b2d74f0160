"""The opaque configuration that a claim or its device class carries for this driver: decoded strictly, matched to requests. Pure.

The kinds are NVIDIA's and upstream's; a vGPU has none of its own. What they ask for are ways of sharing, and each way needs a
feature gate that is off: a configuration that asks for none is taken and changes nothing. Unprepare never comes here.

Source: dra-driver-nvidia-gpu api/nvidia.com/resource/v1beta1; precedence: vgpu-manager pkg/kubeletplugin/device_state.go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from vgpu_dra import inventory, quantity
from vgpu_state import ids, jsonshape
from vgpu_state.claims import DeviceKind
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import RequestName

API_VERSION = "resource.nvidia.com/v1beta1"
_WHERE = "status.allocation.devices.config"
_LEAST_PINNED_BYTES = 1 << 20
_INTERVALS = ("Default", "Short", "Medium", "Long")
_BACKEND_POLICIES = ("LegacyOnly", "PreferIommuFD")
_GPU_KEY = re.compile(r"(?:\d{1,3}|GPU-[0-9a-fA-F-]{36})\Z", re.ASCII)


class ConfigKind(StrEnum):
    """GPU is for whole GPUs and their shares, MIG for MIG devices, VFIO for GPUs given to virtual machines: we offer none."""

    GPU = "GpuConfig"
    MIG = "MigDeviceConfig"
    VFIO = "VfioDeviceConfig"


class Sharing(StrEnum):
    """How one device serves several processes. The value is the API's word."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Source(Enum):
    """Whose word it is; a claim's comes after, and so before, its class's."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


_GATE_BY_SHARING = {Sharing.TIME_SLICING: "TimeSlicingSettings", Sharing.MPS: "MPSSupport"}
_DEVICES_BY_KIND: Mapping[ConfigKind, frozenset[DeviceKind]] = {
    ConfigKind.GPU: frozenset({DeviceKind.GPU, DeviceKind.VGPU}),
    ConfigKind.MIG: frozenset({DeviceKind.MIG}),
    ConfigKind.VFIO: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """One entry of ours. No `requests` means all for whose device the kind is; `where` is its path in the claim."""

    kind: ConfigKind
    source: Source
    requests: frozenset[RequestName]
    sharing: Sharing | None
    where: str


def parse_configs(rows: Sequence[Mapping[str, Any]]) -> tuple[DeviceConfig, ...]:
    """The entries that are this driver's, the strongest last.

    Raises:
        MalformedInput: a field is unknown, missing, or not of its form; the message has its path.
    """
    parsed = [_config(row, where=f"{_WHERE}[{i}]") for i, row in enumerate(rows)]
    ours = [config for config in parsed if config is not None]
    return tuple(sorted(ours, key=lambda config: config.source is Source.CLAIM))


def effective_config(configs: Sequence[DeviceConfig], *, request: RequestName, kind: DeviceKind) -> DeviceConfig | None:
    """The configuration of a request's device: the strongest that names it, or that names none and is for such devices.

    A name is a request's, or `main/sub` of one of its alternatives; `main` speaks of all of them.

    Raises:
        MalformedInput: one names this request and is for devices of another kind.
    """
    found: DeviceConfig | None = None
    for config in configs:
        is_named = bool(config.requests & {request, ids.main_request(request)})
        fits = kind in _DEVICES_BY_KIND[config.kind]
        if is_named and not fits:
            raise MalformedInput(
                f"{config.where}: a {config.kind} cannot be that of request {request}, whose device is of type {kind}"
            )
        if fits and (is_named or not config.requests):
            found = config
    return found


def check_supported(config: DeviceConfig) -> None:
    """Returns when this node does what the configuration asks for.

    Raises:
        PreconditionFailed: it asks for a way of sharing whose feature gate is off.
    """
    if config.sharing is not None:
        raise PreconditionFailed(
            f"{config.where}.opaque.parameters.sharing.strategy is {config.sharing.value}, which needs the feature gate "
            f"{_GATE_BY_SHARING[config.sharing]}; it is off"
        )


def _config(row: Mapping[str, Any], *, where: str) -> DeviceConfig | None:
    try:
        opaque = jsonshape.mapping(row, "opaque")
        if jsonshape.text(opaque, "driver") != inventory.DRIVER:
            return None
        requests = (
            frozenset(map(ids.parse_request_name, jsonshape.texts(row, "requests"))) if row.get("requests") else frozenset()
        )
        parameters = jsonshape.mapping(opaque, "parameters")
    except (jsonshape.ShapeError, MalformedInput) as exc:
        raise MalformedInput(f"{where}: {exc}") from exc
    source = _word(row, "source", [s.value for s in Source], where=where)
    kind, sharing = _parameters(_Fields(doc=parameters, where=f"{where}.opaque.parameters"))
    return DeviceConfig(kind=kind, source=Source(source), requests=requests, sharing=sharing, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """An object of the parameters and its path. Absent and null are the same, as for the API's own types."""

    doc: Mapping[str, Any]
    where: str

    def fault(self, field: str, words: str) -> MalformedInput:
        return MalformedInput(f"{self.where}.{field} {words}")

    def check_known(self, known: Collection[str]) -> None:
        if unknown := sorted(set(self.doc) - set(known)):
            raise self.fault(ids.shown(unknown[0]), f"is not known; expected {', '.join(sorted(known))}")

    def word(self, field: str, allowed: Sequence[str]) -> str | None:
        return None if self.doc.get(field) is None else _word(self.doc, field, allowed, where=self.where)

    def below(self, field: str) -> _Fields | None:
        value = self.doc.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(field, f"is of type {type(value).__name__}; expected an object")
        return _Fields(doc=value, where=f"{self.where}.{field}")


def _parameters(fields: _Fields) -> tuple[ConfigKind, Sharing | None]:
    if fields.word("apiVersion", (API_VERSION,)) is None:
        raise fields.fault("apiVersion", f"is missing; expected {API_VERSION}")
    kind = fields.word("kind", list(ConfigKind))
    if kind is None:
        raise fields.fault("kind", f"is missing; expected one of {', '.join(ConfigKind)}")
    if kind == ConfigKind.VFIO:
        fields.check_known(("apiVersion", "kind", "iommu"))
        _check_iommu(fields.below("iommu"))
        return ConfigKind.VFIO, None
    fields.check_known(("apiVersion", "kind", "sharing"))
    sharing = fields.below("sharing")
    return ConfigKind(kind), None if sharing is None else _sharing(sharing, ConfigKind(kind))


def _sharing(fields: _Fields, kind: ConfigKind) -> Sharing:
    # A MIG device has no time slices of its own to set.
    ways = {Sharing.TIME_SLICING: "timeSlicingConfig"} if kind is ConfigKind.GPU else {}
    ways[Sharing.MPS] = "mpsConfig"
    fields.check_known(("strategy", *ways.values()))
    strategy = fields.word("strategy", list(Sharing))
    if strategy is None:
        raise fields.fault("strategy", f"is missing; expected one of {', '.join(Sharing)}")
    for way, name in ways.items():
        if way != strategy and fields.doc.get(name) is not None:
            raise fields.fault(name, f"does not go with strategy {strategy}")
    if (slices := fields.below("timeSlicingConfig")) is not None:
        slices.check_known(("interval",))
        slices.word("interval", _INTERVALS)
    if (mps := fields.below("mpsConfig")) is not None:
        _check_mps(mps)
    return Sharing(strategy)


def _check_mps(fields: _Fields) -> None:
    fields.check_known(("defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit"))
    percent = fields.doc.get("defaultActiveThreadPercentage")
    if percent is not None and (type(percent) is not int or not 0 <= percent <= 100):  # JSON true is an int
        raise fields.fault("defaultActiveThreadPercentage", f"is {ids.shown(str(percent))}; expected 0 to 100")
    _check_pinned(fields, "defaultPinnedDeviceMemoryLimit")
    per_device = fields.below("defaultPerDevicePinnedMemoryLimit") or _Fields(doc={}, where="")
    for key in per_device.doc:
        if not _GPU_KEY.match(key):
            raise per_device.fault(ids.shown(key), "is no GPU; expected an index or a GPU UUID")
        _check_pinned(per_device, key)


def _check_pinned(fields: _Fields, field: str) -> None:
    value = fields.doc.get(field)
    if value is None:
        return
    if type(value) not in (str, int):
        raise fields.fault(field, f"is of type {type(value).__name__}; expected a quantity such as 8Gi")
    if quantity.parse_quantity(str(value), field=f"{fields.where}.{field}") < _LEAST_PINNED_BYTES:
        raise fields.fault(field, f"is {value!r}; expected at least 1Mi")


def _check_iommu(fields: _Fields | None) -> None:
    if fields is None:
        return
    fields.check_known(("backendPolicy", "enableAPIDevice"))
    fields.word("backendPolicy", _BACKEND_POLICIES)
    enables = fields.doc.get("enableAPIDevice")
    if enables is not None and not isinstance(enables, bool):
        raise fields.fault("enableAPIDevice", f"is of type {type(enables).__name__}; expected true or false")


def _word(doc: Mapping[str, Any], field: str, allowed: Sequence[str], *, where: str) -> str:
    value = doc.get(field)
    if not isinstance(value, str) or value not in allowed:
        shown = ids.shown(value) if isinstance(value, str) else f"of type {type(value).__name__}"
        one_of = "one of " if len(allowed) > 1 else ""
        raise MalformedInput(f"{where}.{field} is {shown}; expected {one_of}{', '.join(allowed)}")
    return value
