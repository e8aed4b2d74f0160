"""Opaque configuration: what is understood, what is refused and where, and which entry speaks for a request."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_dra import device_config
from vgpu_dra.device_config import ConfigKind, Sharing, Source
from vgpu_state.claims import DeviceKind
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import RequestName

PARAMETERS = "status.allocation.devices.config[0].opaque.parameters"


def row(
    parameters: Any, *, source: str = "FromClaim", requests: list[str] | None = None, driver: str = "manager.nvidia.com"
) -> Any:
    entry: dict[str, Any] = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return entry if requests is None else {**entry, "requests": requests}


def gpu(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **fields}


def mig(**fields: Any) -> dict[str, Any]:
    return gpu(**fields) | {"kind": "MigDeviceConfig"}


def vfio(**fields: Any) -> dict[str, Any]:
    return gpu(**fields) | {"kind": "VfioDeviceConfig"}


def mps(**fields: Any) -> dict[str, Any]:
    return gpu(sharing={"strategy": "MPS", "mpsConfig": fields})


@pytest.mark.parametrize(
    ("parameters", "kind", "sharing"),
    [
        (gpu(), ConfigKind.GPU, None),
        (gpu(sharing=None), ConfigKind.GPU, None),
        (gpu(sharing={"strategy": "TimeSlicing"}), ConfigKind.GPU, Sharing.TIME_SLICING),
        (gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}), ConfigKind.GPU, Sharing.TIME_SLICING),
        (
            gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}, "mpsConfig": None}),
            ConfigKind.GPU,
            Sharing.TIME_SLICING,
        ),
        (gpu(sharing={"strategy": "MPS"}), ConfigKind.GPU, Sharing.MPS),
        (mps(defaultActiveThreadPercentage=0), ConfigKind.GPU, Sharing.MPS),
        (
            mps(
                defaultActiveThreadPercentage=100,
                defaultPinnedDeviceMemoryLimit="8Gi",
                defaultPerDevicePinnedMemoryLimit={"0": "1Mi", "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005": 1048576},
            ),
            ConfigKind.GPU,
            Sharing.MPS,
        ),
        (mig(), ConfigKind.MIG, None),
        (mig(sharing={"strategy": "MPS", "mpsConfig": {}}), ConfigKind.MIG, Sharing.MPS),
        (mig(sharing={"strategy": "TimeSlicing"}), ConfigKind.MIG, Sharing.TIME_SLICING),
        (vfio(), ConfigKind.VFIO, None),
        (vfio(iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}), ConfigKind.VFIO, None),
    ],
)
def test_configuration_is_taken_as_its_kind(parameters: Any, kind: ConfigKind, sharing: Sharing | None) -> None:
    (config,) = device_config.parse_configs([row(parameters, requests=["a", "b/c"])])

    assert (config.kind, config.sharing, config.source) == (kind, sharing, Source.CLAIM)
    assert config.requests == {"a", "b/c"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"source": "FromClaim"}, "status.allocation.devices.config[0]: field opaque is missing"),
        (row([]), "status.allocation.devices.config[0]: field parameters is of type list; expected an object"),
        (
            row(gpu(), source="Elsewhere"),
            "status.allocation.devices.config[0].source is 'Elsewhere'; expected one of FromClass, FromClaim",
        ),
        (row(gpu(), requests=["A"]), "status.allocation.devices.config[0]: request name is 'A'; expected a DNS label, or two"),
        (row({"kind": "GpuConfig"}), f"{PARAMETERS}.apiVersion is missing; expected resource.nvidia.com/v1beta1"),
        (
            row({**gpu(), "apiVersion": "resource.nvidia.com/v1"}),
            f"{PARAMETERS}.apiVersion is 'resource.nvidia.com/v1'; expected resource.nvidia.com/v1beta1",
        ),
        (
            row({"apiVersion": "resource.nvidia.com/v1beta1"}),
            f"{PARAMETERS}.kind is missing; expected one of GpuConfig, MigDeviceConfig, VfioDeviceConfig",
        ),
        (
            row({**gpu(), "kind": "ComputeDomainChannelConfig"}),
            f"{PARAMETERS}.kind is 'ComputeDomainChannelConfig'; expected one of",
        ),
        (row({**gpu(), "kind": 5}), f"{PARAMETERS}.kind is of type int; expected one of"),
        (row(gpu(sharring={})), f"{PARAMETERS}.'sharring' is not known; expected apiVersion, kind, sharing"),
        (row(gpu(iommu={})), f"{PARAMETERS}.'iommu' is not known"),
        (row(gpu(sharing="MPS")), f"{PARAMETERS}.sharing is of type str; expected an object"),
        (row(gpu(sharing={})), f"{PARAMETERS}.sharing.strategy is missing; expected one of TimeSlicing, MPS"),
        (row(gpu(sharing={"strategy": "mps"})), f"{PARAMETERS}.sharing.strategy is 'mps'; expected one of TimeSlicing, MPS"),
        (
            row(gpu(sharing={"strategy": "MPS", "timeSlicingConfig": {}})),
            f"{PARAMETERS}.sharing.timeSlicingConfig does not go with strategy MPS",
        ),
        (
            row(gpu(sharing={"strategy": "TimeSlicing", "mpsConfig": {}})),
            f"{PARAMETERS}.sharing.mpsConfig does not go with strategy TimeSlicing",
        ),
        (
            row(gpu(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "1ms"}})),
            f"{PARAMETERS}.sharing.timeSlicingConfig.interval is '1ms'; expected one of Default, Short, Medium, Long",
        ),
        (
            row(mig(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}})),
            f"{PARAMETERS}.sharing.'timeSlicingConfig' is not known; expected mpsConfig, strategy",
        ),
        (
            row(mps(defaultActiveThreadPercentage=101)),
            f"{PARAMETERS}.sharing.mpsConfig.defaultActiveThreadPercentage is '101'; expected 0 to 100",
        ),
        (
            row(mps(defaultActiveThreadPercentage=True)),
            f"{PARAMETERS}.sharing.mpsConfig.defaultActiveThreadPercentage is 'True'; expected 0 to 100",
        ),
        (
            row(mps(defaultPinnedDeviceMemoryLimit="1000Ki")),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is '1000Ki'; expected at least 1Mi",
        ),
        (
            row(mps(defaultPinnedDeviceMemoryLimit="much")),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is 'much'; expected a quantity such as 8Gi or 30",
        ),
        (
            row(mps(defaultPinnedDeviceMemoryLimit=[1])),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is of type list; expected a quantity such as 8Gi",
        ),
        (
            row(mps(defaultPerDevicePinnedMemoryLimit={"one": "8Gi"})),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.'one' is no GPU; expected an index or a GPU UUID",
        ),
        (
            row(mps(defaultPerDevicePinnedMemoryLimit={"1": "1"})),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.1 is '1'; expected at least 1Mi",
        ),
        (row(mps(extra=1)), f"{PARAMETERS}.sharing.mpsConfig.'extra' is not known"),
        (row(mps(**{"a\nb" * 100: 1})), f"{PARAMETERS}.sharing.mpsConfig.'a\\nba\\nb"),
        (
            row(mps(defaultActiveThreadPercentage="9" * 1000)),
            f"{PARAMETERS}.sharing.mpsConfig.defaultActiveThreadPercentage is '{'9' * 80}…'; expected 0 to 100",
        ),
        (row(vfio(iommu={"backendPolicy": "None"})), f"{PARAMETERS}.iommu.backendPolicy is 'None'; expected one of LegacyOnly"),
        (
            row(vfio(iommu={"enableAPIDevice": "yes"})),
            f"{PARAMETERS}.iommu.enableAPIDevice is of type str; expected true or false",
        ),
    ],
)
def test_configuration_that_is_not_understood_is_refused_with_its_path(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        device_config.parse_configs([entry])

    assert str(refusal.value).startswith(words)


@pytest.mark.parametrize(
    "parameters", [gpu(**{"\ud800": 1}), {**gpu(), "kind": "\ud800"}, mps(defaultActiveThreadPercentage="\ud800")]
)
def test_refusal_is_text_that_can_be_sent_whatever_was_written(parameters: Any) -> None:
    """JSON has escapes for half a character, which no encoding has: the Event and kubelet's answer would be no bytes."""
    with pytest.raises(MalformedInput) as refusal:
        device_config.parse_configs([row(parameters)])

    assert "\\ud800" in str(refusal.value).encode().decode()


def test_configuration_of_another_driver_is_not_looked_at() -> None:
    entries = [row({"kind": "Anything"}, driver="gpu.example.com", source="Elsewhere"), row(gpu())]

    (config,) = device_config.parse_configs(entries)

    assert config.where == "status.allocation.devices.config[1]"


def effective(*entries: dict[str, Any], request: str = "r", kind: DeviceKind = DeviceKind.GPU) -> str | None:
    configs = device_config.parse_configs(entries)
    found = device_config.effective_config(configs, request=RequestName(request), kind=kind)
    return None if found is None else found.where.removeprefix("status.allocation.devices.config")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], None),
        ([row(gpu())], "[0]"),
        ([row(gpu()), row(gpu())], "[1]"),
        ([row(gpu(), source="FromClaim"), row(gpu(), source="FromClass")], "[0]"),
        ([row(gpu(), requests=["r"]), row(gpu())], "[1]"),
        ([row(gpu(), requests=["r"]), row(gpu(), requests=["other"])], "[0]"),
        ([row(gpu(), requests=["other"])], None),
        ([row(mig())], None),
        ([row(gpu()), row(mig())], "[0]"),
        ([row(vfio())], None),
        ([row(gpu(), requests=[])], "[0]"),
    ],
)
def test_last_configuration_that_fits_speaks_and_a_claims_before_its_classs(
    entries: list[dict[str, Any]], expected: str | None
) -> None:
    assert effective(*entries) == expected


@pytest.mark.parametrize(("named", "expected"), [("main", "[0]"), ("main/sub", "[0]"), ("main/other", None), ("sub", None)])
def test_alternative_is_named_by_itself_or_by_its_request(named: str, expected: str | None) -> None:
    assert effective(row(gpu(), requests=[named]), request="main/sub") == expected


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (DeviceKind.GPU, {"GpuConfig"}),
        (DeviceKind.VGPU, {"GpuConfig"}),
        (DeviceKind.MIG, {"MigDeviceConfig"}),
    ],
)
def test_configuration_that_names_a_request_of_another_type_is_refused(kind: DeviceKind, fits: set[str]) -> None:
    for parameters in (gpu(), mig(), vfio()):
        entry = row(parameters, requests=["r"])
        if parameters["kind"] in fits:
            assert effective(entry, kind=kind) == "[0]"
            continue
        with pytest.raises(MalformedInput) as refusal:
            effective(entry, kind=kind)
        assert str(refusal.value) == (
            f"status.allocation.devices.config[0]: a {parameters['kind']} cannot be that of request r, whose device is of type "
            f"{kind}"
        )


@pytest.mark.parametrize(("strategy", "gate"), [("TimeSlicing", "TimeSlicingSettings"), ("MPS", "MPSSupport")])
def test_way_of_sharing_is_refused_naming_its_gate(strategy: str, gate: str) -> None:
    (config,) = device_config.parse_configs([row(gpu(sharing={"strategy": strategy}))])

    with pytest.raises(PreconditionFailed) as refusal:
        device_config.check_supported(config)

    assert str(refusal.value) == f"{PARAMETERS}.sharing.strategy is {strategy}, which needs the feature gate {gate}; it is off"


def test_configuration_without_sharing_is_supported() -> None:
    for config in device_config.parse_configs([row(gpu()), row(mig()), row(vfio())]):
        device_config.check_supported(config)
