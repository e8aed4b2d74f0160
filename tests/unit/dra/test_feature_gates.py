"""Which features are on: upstream's names, Kubernetes' form, and every fault of what was asked for in one message."""

from __future__ import annotations

import pytest

from vgpu_daemon.run import BadUsage
from vgpu_dra.config import parse_config
from vgpu_dra.feature_gates import FeatureGates, Gate, parse_feature_gates
from vgpu_state.errors import MalformedInput


def test_without_the_option_upstreams_gates_are_at_their_defaults_but_nri_and_client_mode_are_on() -> None:
    assert parse_feature_gates("").states() == {
        "VGPUSupport": True,
        "NRISupport": True,
        "DevicePluginClientMode": True,
        "NVMLDeviceHealthCheck": True,
        "TimeSlicingSettings": False,
        "MPSSupport": False,
        "DynamicMIG": False,
        "SharedSMUtilizationWatcher": False,
        "PassthroughSupport": False,
        "DeviceMetadata": False,
        "FabricManagerPartitioning": False,
        "DRAListTypeAttributes": False,
        "ConsumableShares": False,
        "IMEXDaemonsWithDNSNames": True,
        "ContextualLogging": True,
    }


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("NRISupport=false", {Gate.NRI_SUPPORT}),
        (" NRISupport = F ,, NVMLDeviceHealthCheck=0,", {Gate.NRI_SUPPORT, Gate.HEALTH_CHECK}),
        ("NRISupport=true,NRISupport=False", {Gate.NRI_SUPPORT}),
        ("NRISupport=FALSE,NRISupport=1", set()),
        ("VGPUSupport=false,NRISupport=f,DevicePluginClientMode=false", {Gate.VGPU_SUPPORT, Gate.NRI_SUPPORT, Gate.CLIENT_MODE}),
        ("MPSSupport=false,ContextualLogging=true", set()),
    ],
)
def test_gates_are_read_as_kubernetes_reads_them_and_the_last_entry_of_a_name_counts(text: str, off: set[Gate]) -> None:
    gates = parse_feature_gates(text)

    assert gates.on == FeatureGates().on - off
    assert [gates.is_on(gate) for gate in sorted(off)] == [False] * len(off)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NRISupport", "'NRISupport' is not of the form Name=true or Name=false"),
        ("NRISupport=yes", "'NRISupport=yes' is not of the form Name=true or Name=false"),
        ("=true", "'' is no gate (they are VGPUSupport, NRISupport, DevicePluginClientMode, NVMLDeviceHealthCheck, "),
        ("nrisupport=true", "'nrisupport' is no gate (they are VGPUSupport, "),
        ("DynamicMIG=true", "DynamicMIG cannot be true: this version does not build it, and knows only false"),
        (
            "IMEXDaemonsWithDNSNames=0",
            "IMEXDaemonsWithDNSNames cannot be false: this version does not build it, and knows only true",
        ),
        (
            "VGPUSupport=false,NRISupport=false",
            "DevicePluginClientMode needs VGPUSupport, which is off: turn both on or both off",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        parse_feature_gates(text)

    assert str(refusal.value).startswith(words)
    assert ";" not in str(refusal.value)


def test_every_fault_is_in_one_message_in_a_fixed_order() -> None:
    text = "PassthroughSupport=true,Off,MPSSupport=true,DeviceMetadata=true,DynamicMIG=true,ConsumableShares=true,Foo=true"
    with pytest.raises(BadUsage) as refusal:
        parse_config([f"--feature-gates={text}"], {})

    option, _, faults = str(refusal.value).partition("': ")
    assert option == f"--feature-gates is '{text}"
    assert [fault.partition(" (they are")[0].partition(": this version")[0] for fault in faults.split("; ")] == [
        "'Off' is not of the form Name=true or Name=false",
        "'Foo' is no gate",
        "MPSSupport cannot be true",
        "DynamicMIG cannot be true",
        "PassthroughSupport cannot be true",
        "DeviceMetadata cannot be true",
        "ConsumableShares cannot be true",
        "VGPUSupport and MPSSupport exclude each other: turn one off",
        "VGPUSupport and PassthroughSupport exclude each other: turn one off",
        "VGPUSupport and ConsumableShares exclude each other: turn one off",
        "DynamicMIG and PassthroughSupport exclude each other: turn one off",
        "DynamicMIG and MPSSupport exclude each other: turn one off",
        "PassthroughSupport and NVMLDeviceHealthCheck exclude each other: turn one off",
    ]


def test_needs_are_checked_beside_what_is_not_built() -> None:
    with pytest.raises(MalformedInput) as refusal:
        parse_feature_gates("VGPUSupport=false,DeviceMetadata=true,SharedSMUtilizationWatcher=true")

    assert str(refusal.value).split("; ")[2:] == [
        "NRISupport needs VGPUSupport, which is off: turn both on or both off",
        "DevicePluginClientMode needs VGPUSupport, which is off: turn both on or both off",
        "SharedSMUtilizationWatcher needs VGPUSupport, which is off: turn both on or both off",
        "DeviceMetadata needs PassthroughSupport, which is off: turn both on or both off",
    ]


def test_gates_come_from_the_environment_too_and_say_whether_shares_are_given() -> None:
    gates = "VGPUSupport=false,NRISupport=false,DevicePluginClientMode=false"
    config = parse_config([], {"VGPU_FEATURE_GATES": gates})

    assert config.gates.on == FeatureGates().on - {Gate.VGPU_SUPPORT, Gate.NRI_SUPPORT, Gate.CLIENT_MODE}
    assert (config.offer.has_shares, config.rules.has_shares) == (False, False)
    assert (parse_config([], {}).offer.has_shares, parse_config([], {}).rules.has_shares) == (True, True)
