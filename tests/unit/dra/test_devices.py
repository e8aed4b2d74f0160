"""What of the GPUs is offered to the scheduler, and under which names and numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.inventory import Inventory, Traits
from vgpu_dra.policy import devices
from vgpu_testkit.dra_values import INVENTORY, MIB, h100

NOTHING_SAID = Traits(brand=None, architecture=None, compute_capability=None, pci_bus_id=None, pcie_root=None, numa_node=None)


def only(gpu_count: int) -> Inventory:
    return replace(INVENTORY, gpus=INVENTORY.gpus[:gpu_count])


def test_a_gpu_is_one_shareable_device_with_the_names_of_upstream() -> None:
    offer = devices.offer(only(1))

    assert offer.withheld == ()
    assert offer.devices == (
        {
            "name": "vgpu-0",
            "allowMultipleAllocations": True,
            "attributes": {
                "type": {"string": "vgpu"},
                "uuid": {"string": "gpu-5e5a3bb1-7d0c-4d58-9c1a-000000000000"},
                "minor": {"int": 0},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "brand": {"string": "Nvidia"},
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "550.90.7"},
                "cudaDriverVersion": {"version": "12.4.0"},
                "coreRatio": {"int": 100},
                "memoryRatio": {"int": 100},
                "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
                "resource.kubernetes.io/numaNode": {"int": 0},
            },
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
        },
    )


def test_devices_are_in_the_order_of_nvml_and_named_by_minor() -> None:
    inventory = replace(INVENTORY, gpus=(h100(0, minor=2), h100(1, minor=3), h100(2, minor=0)))

    assert [d["name"] for d in devices.offer(inventory).devices] == ["vgpu-2", "vgpu-3", "vgpu-0"]


def test_memory_lies_on_the_grid_of_one_mebibyte_when_nvmls_total_does_not() -> None:
    inventory = replace(INVENTORY, gpus=(replace(h100(0), memory_bytes=81559 * MIB + 123456),))

    memory = devices.offer(inventory).devices[0]["capacity"]["memory"]

    assert memory["value"] == memory["requestPolicy"]["default"] == memory["requestPolicy"]["validRange"]["max"] == "81559Mi"


def test_what_the_driver_does_not_say_is_left_out() -> None:
    gpu = replace(h100(0), name="x" * 65, traits=NOTHING_SAID)

    attributes = devices.offer(replace(INVENTORY, gpus=(gpu,), driver_version="550.90.07-beta")).devices[0]["attributes"]

    assert sorted(attributes) == ["coreRatio", "cudaDriverVersion", "memoryRatio", "minor", "type", "uuid"]


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
    assert devices.semver(version) == expected


def test_a_gpu_that_prepare_would_refuse_is_withheld_with_a_reason() -> None:
    inventory = replace(INVENTORY, gpus=(h100(15), h100(16), replace(h100(3), memory_bytes=MIB)))

    offer = devices.offer(inventory)

    assert [d["name"] for d in offer.devices] == ["vgpu-15"]
    assert offer.withheld == (
        "GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000016 has index 16; the limits file has slots 0 to 15",
        "GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000003 has 1048576 bytes of memory",
    )
