"""How a device of a GPU is described: upstream's names, attributes and capacities, on the API's grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.inventory import Inventory, Traits
from vgpu_dra.policy import device_documents
from vgpu_dra.rules import Ratios
from vgpu_testkit import api_slice_rules
from vgpu_testkit.dra_values import INVENTORY, MIB, MIG, h100

NOTHING_SAID = Traits(brand=None, architecture=None, compute_capability=None, pci_bus_id=None, pcie_root=None, numa_node=None)
ATTRIBUTES = {
    "uuid": {"string": "gpu-5e5a3bb1-7d0c-4d58-9c1a-000000000000"},
    "minor": {"int": 0},
    "productName": {"string": "NVIDIA H100 80GB HBM3"},
    "brand": {"string": "Nvidia"},
    "architecture": {"string": "Hopper"},
    "cudaComputeCapability": {"version": "9.0.0"},
    "driverVersion": {"version": "550.90.7"},
    "cudaDriverVersion": {"version": "12.4.0"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
    "resource.kubernetes.io/numaNode": {"int": 0},
}


def refusals(*devices: Any) -> list[str]:
    """What an API server says against a slice of these devices."""
    pool = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "manager.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": list(devices)}
    return api_slice_rules.refusals({"spec": spec}, release=(1, 37))


def test_shares_of_a_gpu_are_one_device_with_the_names_of_upstream() -> None:
    assert device_documents.vgpu(h100(0), INVENTORY, ratios=Ratios()) == {
        "name": "vgpu-0",
        "allowMultipleAllocations": True,
        "attributes": {**ATTRIBUTES, "type": {"string": "vgpu"}, "coreRatio": {"int": 100}, "memoryRatio": {"int": 100}},
        "capacity": {
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "100", "validRange": {"min": "0", "max": "100", "step": "1"}},
            },
            "memory": {
                "value": "81559Mi",
                "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}},
            },
        },
    }


def test_a_whole_gpu_is_one_device_with_its_memory() -> None:
    assert device_documents.whole(h100(0), INVENTORY) == {
        "name": "gpu-0",
        "attributes": {**ATTRIBUTES, "type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def test_a_mig_device_is_named_by_its_place_and_says_whose_it_is() -> None:
    assert device_documents.mig(MIG, h100(0), INVENTORY) == {
        "name": "gpu-0-mig-19-2-1",
        "attributes": {
            **ATTRIBUTES,
            "type": {"string": "mig"},
            "uuid": {"string": "mig-5e5a3bb1-7d0c-4d58-9c1a-0000000003a0"},
            "parentUUID": {"string": "gpu-5e5a3bb1-7d0c-4d58-9c1a-000000000000"},
            "profile": {"string": "1g.10gb"},
        },
        "capacity": {
            "memory": {"value": "9856Mi"},
            "multiprocessors": {"value": "16"},
            "copyEngines": {"value": "1"},
            "decoders": {"value": "1"},
            "encoders": {"value": "0"},
            "jpegEngines": {"value": "1"},
            "ofaEngines": {"value": "0"},
            "memorySlice2": {"value": "1"},
        },
    }


def test_a_mig_device_of_the_whole_gpu_is_within_the_apis_limit() -> None:
    device = device_documents.mig(replace(MIG, profile_id=0, start=0, size=8), h100(0), INVENTORY)

    assert [name for name in device["capacity"] if name.startswith("memorySlice")] == [f"memorySlice{i}" for i in range(8)]
    assert refusals(device) == []


def test_an_oversubscribed_gpu_gives_away_more_and_no_share_computes_on_more_than_all_of_it() -> None:
    device = device_documents.vgpu(h100(0), INVENTORY, ratios=Ratios(cores_percent=250, memory_percent=150))

    assert device["attributes"]["coreRatio"] == {"int": 250}
    assert device["attributes"]["memoryRatio"] == {"int": 150}
    assert device["capacity"] == {
        "cores": {"value": "250", "requestPolicy": {"default": "100", "validRange": {"min": "0", "max": "100", "step": "1"}}},
        "memory": {
            "value": "122338Mi",
            "requestPolicy": {"default": "122338Mi", "validRange": {"min": "1Mi", "max": "122338Mi", "step": "1Mi"}},
        },
    }


def test_of_a_gpu_that_is_kept_in_part_a_share_has_no_more_than_is_given_away() -> None:
    device = device_documents.vgpu(h100(0), INVENTORY, ratios=Ratios(cores_percent=50, memory_percent=10))

    assert device["capacity"]["cores"]["requestPolicy"]["default"] == "50"
    assert device["capacity"]["cores"]["requestPolicy"]["validRange"]["max"] == "50"
    assert device["capacity"]["memory"]["value"] == "8155Mi"


@given(memory_bytes=st.integers(256 * MIB, 1 << 42), cores=st.integers(1, 1000), memory=st.integers(1, 1000))
def test_every_number_lies_on_the_apis_grid(memory_bytes: int, cores: int, memory: int) -> None:
    gpu = replace(h100(0), memory_bytes=memory_bytes)
    ratios = Ratios(cores_percent=cores, memory_percent=memory)

    assert refusals(device_documents.vgpu(gpu, INVENTORY, ratios=ratios), device_documents.whole(gpu, INVENTORY)) == []


def test_what_the_driver_does_not_say_is_left_out() -> None:
    gpu = replace(h100(0), name="x" * 65, traits=NOTHING_SAID)
    inventory: Inventory = replace(INVENTORY, gpus=(gpu,), driver_version="550.90.07-beta")

    attributes = device_documents.whole(gpu, inventory)["attributes"]

    assert sorted(attributes) == ["cudaDriverVersion", "minor", "type", "uuid"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("550.90.07", "550.90.7"),
        ("570.086.10", "570.86.10"),
        ("550.54.15", "550.54.15"),
        ("595.0.00", "595.0.0"),
        ("6.1", "6.1.0"),
        ("550", "550.0.0"),
        ("1.2.3.4", None),
        ("550.90.07-beta", None),
        ("550.90.07\n", None),
        ("٥.1.1", None),
        ("", None),
    ],
)
def test_a_drivers_version_becomes_semver_or_nothing(version: str, expected: str | None) -> None:
    assert device_documents.semver(version) == expected
