"""Which of this project's features are on: upstream's feature gates, by upstream's names. Pure.

Source: vgpu-manager pkg/kubeletplugin/featuregates/featuregates.go for names, needs and exclusions (NRISupport and
DevicePluginClientMode are off by default there); k8s.io/component-base/featuregate, Set, for the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from vgpu_state.errors import MalformedInput
from vgpu_state.ids import shown


class Gate(StrEnum):
    """Every gate that upstream knows."""

    VGPU_SUPPORT = "VGPUSupport"
    NRI_SUPPORT = "NRISupport"
    CLIENT_MODE = "DevicePluginClientMode"
    HEALTH_CHECK = "NVMLDeviceHealthCheck"
    TIME_SLICING = "TimeSlicingSettings"
    MPS = "MPSSupport"
    DYNAMIC_MIG = "DynamicMIG"
    SHARED_SM_WATCHER = "SharedSMUtilizationWatcher"
    PASSTHROUGH = "PassthroughSupport"
    DEVICE_METADATA = "DeviceMetadata"
    FABRIC_MANAGER = "FabricManagerPartitioning"
    LIST_TYPE_ATTRIBUTES = "DRAListTypeAttributes"
    CONSUMABLE_SHARES = "ConsumableShares"
    IMEX_DNS_NAMES = "IMEXDaemonsWithDNSNames"
    CONTEXTUAL_LOGGING = "ContextualLogging"


_BUILT = (Gate.VGPU_SUPPORT, Gate.NRI_SUPPORT, Gate.CLIENT_MODE, Gate.HEALTH_CHECK)
_ON_BY_DEFAULT = frozenset({*_BUILT, Gate.IMEX_DNS_NAMES, Gate.CONTEXTUAL_LOGGING})
_NEEDS = (
    (Gate.NRI_SUPPORT, Gate.VGPU_SUPPORT),
    (Gate.CLIENT_MODE, Gate.VGPU_SUPPORT),
    (Gate.SHARED_SM_WATCHER, Gate.VGPU_SUPPORT),
    (Gate.DEVICE_METADATA, Gate.PASSTHROUGH),
)
_EXCLUDES = (
    (Gate.VGPU_SUPPORT, Gate.MPS),
    (Gate.VGPU_SUPPORT, Gate.PASSTHROUGH),
    (Gate.VGPU_SUPPORT, Gate.CONSUMABLE_SHARES),
    (Gate.DYNAMIC_MIG, Gate.PASSTHROUGH),
    (Gate.DYNAMIC_MIG, Gate.MPS),
    (Gate.PASSTHROUGH, Gate.HEALTH_CHECK),
)
# Go's strconv.ParseBool.
_WORDS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGates:
    """The gates that are on; all others are off."""

    on: frozenset[Gate] = _ON_BY_DEFAULT

    def is_on(self, gate: Gate) -> bool:
        return gate in self.on

    def states(self) -> dict[str, bool]:
        """Every gate by name, and whether it is on."""
        return {gate.value: gate in self.on for gate in Gate}


def parse_feature_gates(text: str) -> FeatureGates:
    """The gates of `Name=true,Other=false`, over the defaults. As in Kubernetes, the last entry of a name counts.

    Raises:
        MalformedInput: an entry is not of that form, no gate has the name, this version does not build what is asked for, or
            gates do not go together; one message with every fault, those of entries first.
    """
    given: dict[Gate, bool] = {}
    faults = []
    for entry in text.split(","):
        name, equals, word = (part.strip() for part in entry.partition("="))
        if not entry:
            continue
        if not equals or word not in _WORDS:
            faults.append(f"{shown(entry)} is not of the form Name=true or Name=false")
        elif name not in set(Gate):
            faults.append(f"{shown(name)} is no gate (they are {', '.join(Gate)})")
        else:
            given[Gate(name)] = _WORDS[word]
    on = frozenset(gate for gate in Gate if given.get(gate, gate in _ON_BY_DEFAULT))
    faults += [*_not_built(given), *_conflicts(on)]
    if faults:
        raise MalformedInput("; ".join(faults))
    return FeatureGates(on=on)


def _not_built(given: Mapping[Gate, bool]) -> Iterator[str]:
    for gate in Gate:
        default = gate in _ON_BY_DEFAULT
        if gate not in _BUILT and given.get(gate, default) is not default:
            yield f"{gate} cannot be {_word(not default)}: this version does not build it, and knows only {_word(default)}"


def _conflicts(on: frozenset[Gate]) -> Iterator[str]:
    for gate, needed in _NEEDS:
        if gate in on and needed not in on:
            yield f"{gate} needs {needed}, which is off: turn both on or both off"
    for one, other in _EXCLUDES:
        if one in on and other in on:
            yield f"{one} and {other} exclude each other: turn one off"


def _word(is_on: bool) -> str:
    return "true" if is_on else "false"
