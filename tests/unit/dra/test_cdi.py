"""Names and documents of the CDI file; examples/ has the whole file of a claim, and a contract test compares it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from vgpu_dra import cdi
from vgpu_dra.policy import assigners
from vgpu_state.container_abi import Mount
from vgpu_state.ids import DeviceName, RequestName, ShareId
from vgpu_testkit.cdi_spec import parse_json
from vgpu_testkit.dra_values import CLAIM_UID, RECORD, RULES, SLICE, WHOLE, gpu_uuid

NODE = cdi.DeviceNode(path="/dev/nvidia5", host_path="/run/nvidia/driver/dev/nvidia5")
LIBRARY = Mount(destination="/usr/local/nvidia/lib64/libcuda.so.1", source="/usr/lib64/libcuda.so.550.90.07")

EDITS = {r.grant.key: assigners.device_edits(RECORD, r, rules=RULES) for r in RECORD.vgpus}


def device(*, libraries: tuple[Mount, ...] = ()) -> dict[str, Any]:
    files = cdi.NodeFiles(node_by_gpu={gpu_uuid(5): NODE, gpu_uuid(1): NODE}, control_nodes=(), libraries=libraries)
    spec = cdi.encode_spec(RECORD, files=files, edits=EDITS)
    edits: dict[str, Any] = json.loads(spec)["devices"][0]["containerEdits"]
    return edits


def test_driver_libraries_come_with_their_directory_and_without_the_legacy_hook() -> None:
    edits = device(libraries=(LIBRARY,))

    assert edits["env"][3:] == ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "NVIDIA_VISIBLE_DEVICES=void"]
    assert edits["mounts"][5:] == [
        {
            "hostPath": "/usr/lib64/libcuda.so.550.90.07",
            "containerPath": "/usr/local/nvidia/lib64/libcuda.so.1",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
    ]


def test_without_driver_libraries_the_images_own_are_left_alone() -> None:
    edits = device()

    assert len(edits["env"]) == 3
    assert len(edits["mounts"]) == 5


def test_node_elsewhere_on_the_host_has_its_host_path() -> None:
    assert device()["deviceNodes"] == [{"path": "/dev/nvidia5", "hostPath": "/run/nvidia/driver/dev/nvidia5"}]


def test_everything_is_an_edit_of_a_device() -> None:
    """Edits of the file itself would reach containers that were given no device of it."""
    files = cdi.NodeFiles(node_by_gpu={gpu_uuid(5): NODE, gpu_uuid(1): NODE}, libraries=(LIBRARY,))
    spec = cdi.encode_spec(RECORD, files=files, edits=EDITS)

    assert sorted(json.loads(spec)) == ["cdiVersion", "devices", "kind"]


def test_whole_gpu_and_mig_device_are_nodes_and_libraries_and_nothing_else() -> None:
    caps = tuple(
        cdi.DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{n}", host_path=f"/dev/nvidia-caps/nvidia-cap{n}") for n in (3, 4)
    )
    control = cdi.DeviceNode(path="/dev/nvidiactl", host_path="/dev/nvidiactl")
    gpus = {gpu_uuid(i): cdi.DeviceNode(path=f"/dev/nvidia{i}", host_path=f"/dev/nvidia{i}") for i in (2, 3)}
    files = cdi.NodeFiles(control_nodes=(control,), node_by_gpu=gpus, caps_by_mig={SLICE.mig_uuid: caps}, libraries=(LIBRARY,))

    spec = cdi.encode_spec(replace(RECORD, results=(WHOLE, SLICE)), files=files, edits=EDITS)

    parse_json(spec.decode())
    whole, mig = (d["containerEdits"] for d in json.loads(spec)["devices"])
    assert whole["deviceNodes"] == [{"path": "/dev/nvidia2"}, {"path": "/dev/nvidiactl"}]
    assert mig["deviceNodes"] == [
        {"path": "/dev/nvidia3"},
        {"path": "/dev/nvidia-caps/nvidia-cap3"},
        {"path": "/dev/nvidia-caps/nvidia-cap4"},
        {"path": "/dev/nvidiactl"},
    ]
    for edits in (whole, mig):
        assert edits["env"] == ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "NVIDIA_VISIBLE_DEVICES=void"]
        assert [m["containerPath"] for m in edits["mounts"]] == ["/usr/local/nvidia/lib64/libcuda.so.1"]


def test_file_is_accepted_by_the_runtimes_rules() -> None:
    files = cdi.NodeFiles(node_by_gpu={gpu_uuid(5): NODE, gpu_uuid(1): NODE}, libraries=(LIBRARY,))

    spec = parse_json(cdi.encode_spec(RECORD, files=files, edits=EDITS).decode())

    assert list(spec.devices) == [RECORD.results[0].cdi_device, RECORD.results[1].cdi_device]


def test_name_of_a_device_joins_what_is_there() -> None:
    name = cdi.device_name(
        claim_uid=CLAIM_UID, request=RequestName("gpu/large"), device=DeviceName("vgpu-0"), share_id=ShareId("")
    )

    assert name == "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-gpu_large-vgpu-0"
    assert cdi.device_id(name) == "k8s.manager.nvidia.com/claim=3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-gpu_large-vgpu-0"


@pytest.mark.parametrize(
    ("name", "claim", "is_temporary"),
    [
        ("k8s.manager.nvidia.com-claim_3f0c.json", "3f0c", False),
        (".k8s.manager.nvidia.com-claim_3f0c.new", None, True),
        ("k8s.manager.nvidia.com-claim_3f0c.json.bak", None, False),
        ("k8s.gpu.nvidia.com-claim_3f0c.json", None, False),
        ("nvidia.json", None, False),
        (".hidden.json", None, False),
    ],
)
def test_only_our_own_files_are_taken_for_ours(name: str, claim: str | None, is_temporary: bool) -> None:
    assert cdi.claim_of_file(name) == claim
    assert cdi.is_temporary(name) is is_temporary
