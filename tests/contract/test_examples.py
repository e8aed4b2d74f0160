"""The files of examples/ are what this code writes for the claim in examples/resourceclaim.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vgpu_dra import cdi
from vgpu_dra.allocation import parse_allocation
from vgpu_dra.effects.manifest_claims import ManifestClaims
from vgpu_dra.policy import assigners, prepare
from vgpu_dra.policy.prepare import NodeNow
from vgpu_dra.rules import Ratios
from vgpu_state import bindings, records
from vgpu_state.claims import ClaimRecord
from vgpu_state.ids import Nonce
from vgpu_testkit.dra_values import BINDING, BOOT_ID, CLAIM, CLAIM_UID, INVENTORY, RECORD, RULES

EXAMPLES = Path(__file__).parents[2] / "examples"
CDI_FILE = "k8s.manager.nvidia.com-claim_3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10.json"


def prepared_from_the_manifest() -> ClaimRecord:
    """The record that Prepare ends with, drawing the nonces of the example."""
    nonces: Iterator[Nonce] = iter([Nonce("c0ffee00c0ffee00c0ffee00c0ffee05"), Nonce("c0ffee00c0ffee00c0ffee00c0ffee01")])
    allocation = parse_allocation(ManifestClaims(EXAMPLES).fetch(CLAIM), expected_uid=CLAIM_UID)
    node = NodeNow(inventory=INVENTORY, ratios=Ratios(), boot_id=BOOT_ID)
    started = prepare.plan_prepare(allocation, existing=None, node=node, mint=lambda: next(nonces))
    return prepare.completed(started)


def test_record_of_the_example_manifest_is_claim_json() -> None:
    assert records.encode_record(prepared_from_the_manifest()) == (EXAMPLES / "claim.json").read_bytes()


def test_claim_json_is_read_as_the_record_of_the_manifest() -> None:
    assert records.decode_record((EXAMPLES / "claim.json").read_bytes()) == prepared_from_the_manifest() == RECORD


def test_binding_of_the_first_container_is_binding_json() -> None:
    assert bindings.encode_binding(BINDING) == (EXAMPLES / "binding.json").read_bytes()
    assert bindings.decode_binding((EXAMPLES / "binding.json").read_bytes()) == BINDING


def test_cdi_file_of_the_example_manifest_is_the_example_cdi_file() -> None:
    nodes = {gpu.uuid: node(f"nvidia{gpu.minor}") for gpu in INVENTORY.gpus}
    control = tuple(node(name) for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))

    record = prepared_from_the_manifest()
    edits = {r.grant.key: assigners.device_edits(record, r, rules=RULES) for r in record.vgpus}
    spec = cdi.encode_spec(record, files=cdi.NodeFiles(control_nodes=control, node_by_gpu=nodes), edits=edits)

    assert cdi.file_name(CLAIM_UID) == CDI_FILE
    assert spec == (EXAMPLES / CDI_FILE).read_bytes()


def node(name: str) -> cdi.DeviceNode:
    return cdi.DeviceNode(path=f"/dev/{name}", host_path=f"/dev/{name}")
