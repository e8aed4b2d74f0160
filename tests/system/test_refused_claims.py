"""Every refusal of Prepare names the claim and the field, what was found and what is allowed, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import betterproto
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import dra_v1
from vgpu_testkit import trees
from vgpu_testkit.dra_bench import DraBench, half_a_gpu, kubelet_claim
from vgpu_testkit.kubelet_values import Claim
from vgpu_testkit.manifests import Manifest, Share

UID = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"
WHO = f"research/half ({UID})"
RESULT = f"claim {WHO} status.allocation.devices.results[0]"
Change = Callable[[dict[str, Any]], Any]


def result(**fields: Any) -> Change:
    """The claim's one allocation result has other fields; None takes one away."""

    def change(doc: dict[str, Any]) -> None:
        row = doc["status"]["allocation"]["devices"]["results"][0]
        row.update(fields)
        for name in [name for name, value in row.items() if value is None]:
            del row[name]

    return change


def results(number: int) -> Change:
    def change(doc: dict[str, Any]) -> None:
        devices = doc["status"]["allocation"]["devices"]
        devices["results"] = devices["results"] * number

    return change


def metadata(**fields: Any) -> Change:
    return lambda doc: doc["metadata"].update(fields)


def status(value: Any) -> Change:
    return lambda doc: doc.update(status=value)


def config(**fields: Any) -> Change:
    """The claim has a GpuConfig with other fields, for its request."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **fields}
    opaque = {"driver": "manager.nvidia.com", "parameters": parameters}
    entry = {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}
    return lambda doc: doc["status"]["allocation"]["devices"].update(config=[entry])


PARAMETERS = "status.allocation.devices.config[0].opaque.parameters"
OTHER_UID = "99999999-8f0a-4f57-9d0e-6a6d1b2c7e10"
REFUSED: tuple[tuple[str, Change, tuple[str, ...]], ...] = (
    ("replaced", metadata(uid=OTHER_UID), ("research/half", f"now has uid {OTHER_UID}", f"asks for {UID}", "replaced")),
    ("upper-case uid", metadata(uid=UID.upper()), ("research/half", f"claim uid is '{UID.upper()}'", "lower-case UUID")),
    ("no uid", lambda doc: doc["metadata"].pop("uid"), (f"ResourceClaim {UID}", "field uid is missing")),
    ("no status", status(None), (f"claim {WHO} is not allocated", "status.allocation")),
    ("status is text", status("allocated"), (f"claim {WHO} is not allocated",)),
    ("no devices", status({"allocation": {}}), (UID, "field devices is missing")),
    ("devices is a list", status({"allocation": {"devices": []}}), (UID, "field devices", "list", "object")),
    ("results of another type", status({"allocation": {"devices": {"results": [1]}}}), (UID, "results", "no object")),
    ("another driver", result(driver="gpu.nvidia.com"), (WHO, "no allocation result of driver manager.nvidia.com")),
    ("too many results", results(33), (WHO, "33 allocation results", "at most 32")),
    ("one share twice", results(2), (WHO, "same request, device and shareID twice")),
    ("adminAccess", result(adminAccess=True), (WHO, "vgpu-5 is asked for with adminAccess", "only whole GPUs")),
    ("being deleted", metadata(deletionTimestamp="2026-11-30T02:00:00Z"), (WHO, "is being deleted")),
    ("unknown configuration", config(sharring={}), (WHO, f"{PARAMETERS}.'sharring' is not known", "expected apiVersion")),
    (
        "time slicing",
        config(sharing={"strategy": "TimeSlicing"}),
        (WHO, f"{PARAMETERS}.sharing.strategy is TimeSlicing", "feature gate TimeSlicingSettings", "off"),
    ),
    ("configuration of a MIG device", config(kind="MigDeviceConfig"), (WHO, "request gpu", "a MigDeviceConfig", "type vgpu")),
    ("no request", result(request=None), (RESULT, "field request is missing")),
    ("request climbs", result(request="../x"), (RESULT, "request name is '../x'", "DNS label")),
    ("request ends in a newline", result(request="gpu\n"), (RESULT, r"'gpu\n'", "DNS label")),
    ("pool with NUL", result(pool="a\0b"), (RESULT, "pool name", r"'a\x00b'")),
    ("device over-long", result(device="v" * 64), (RESULT, "device name", "at most 63")),
    ("device is a number", result(device=5), (RESULT, "field device is of type int", "string")),
    ("shareID no UUID", result(shareID="1"), (RESULT, "shareID is '1'", "lower-case UUID")),
    ("unknown device", result(device="vgpu-8"), (WHO, "request gpu", "vgpu-8 is not on this node", "vgpu-0, vgpu-1")),
    ("whole GPU that is not there", result(device="gpu-8"), (WHO, "gpu-8 is not on this node", "gpu-0, gpu-1")),
    ("cores 101", result(consumedCapacity={"cores": "101"}), (WHO, "request gpu", "cores is 101", "0 to 100")),
    ("cores negative", result(consumedCapacity={"cores": "-1"}), (RESULT, "consumedCapacity.cores is '-1'", "0 to 2^63-1")),
    ("memory nothing", result(consumedCapacity={"memory": "0"}), (WHO, "memory is 0 bytes", "1 to 85520809984")),
    ("memory beyond", result(consumedCapacity={"memory": "80Gi"}), (WHO, "85899345920 bytes", "1 to 85520809984")),
    ("memory in words", result(consumedCapacity={"memory": "much"}), (RESULT, "consumedCapacity.memory is 'much'", "8Gi")),
    ("capacity no object", result(consumedCapacity=[1]), (RESULT, "consumedCapacity", "list", "object")),
)


@pytest.mark.parametrize(("change", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_allocation_that_cannot_be_given_is_refused_in_words(
    shared_bench: DraBench, change: Change, words: tuple[str, ...]
) -> None:
    document = half_a_gpu().document()
    change(document)
    (shared_bench.claims / "research.half.json").write_text(json.dumps(document))
    before = trees.stamps(*shared_bench.roots)

    answer = (await shared_bench.answers(Claim(namespace="research", name="half", uid=UID)))[UID]

    assert answer.devices == ()
    for word in words:
        assert word in answer.error
    assert trees.stamps(*shared_bench.roots) == before


@dataclass(eq=False, repr=False)
class WrongClaims(betterproto.Message):
    """NodePrepareResourcesRequest whose claims are a number."""

    claims: int = betterproto.uint32_field(1)


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
async def test_call_whose_claims_are_none_is_malformed(shared_bench: DraBench, method: str) -> None:
    with pytest.raises(GRPCError) as refusal:
        await shared_bench.call_dra(method, WrongClaims(claims=5), dra_v1.NodePrepareResourcesResponse)

    assert refusal.value.status is Status.INVALID_ARGUMENT
    assert refusal.value.message == "claims is no list of claims with a uid"


@pytest.mark.parametrize(
    ("uid", "word"),
    [
        ("", "''"),
        ("half", "'half'"),
        ("../../../etc", "'../../../etc'"),
        (f"{UID}\n", r"7e10\n'"),
        (f"{UID[:-1]}\0", r"\x00"),
        (UID.upper(), UID.upper()),
        ("a" * 5000, "…"),
    ],
    ids=["empty", "a name", "a path", "with a newline", "with NUL", "upper case", "over-long"],
)
async def test_claim_uid_that_is_none_is_refused_and_the_others_of_the_call_go_on(
    shared_bench: DraBench, uid: str, word: str
) -> None:
    good = half_a_gpu("good", uid="77777777-8f0a-4f57-9d0e-6a6d1b2c7e10")
    good.write(shared_bench.claims)

    answers = await shared_bench.answers(Claim(namespace="research", name="half", uid=uid), kubelet_claim(good))

    assert answers[good.uid].error == ""
    assert len(answers[good.uid].devices) == 1
    assert "claim uid is " in answers[uid].error
    assert word in answers[uid].error
    assert "expected a lower-case UUID" in answers[uid].error
    assert len(answers[uid].error) < 300
    unprepared = await shared_bench.unprepare_answers(Claim(namespace="research", name="half", uid=uid), kubelet_claim(good))
    assert unprepared[good.uid] == ""
    assert "expected a lower-case UUID" in unprepared[uid]


async def test_claim_that_no_manifest_has_is_refused(shared_bench: DraBench) -> None:
    answer = (await shared_bench.answers(Claim(namespace="research", name="absent", uid=UID)))[UID]

    assert answer.error == f"no ResourceClaim research/absent in {shared_bench.claims} (--claims-from)"


async def test_claim_that_is_prepared_with_other_devices_is_refused_and_kept(shared_bench: DraBench) -> None:
    before = Manifest(name="moved", uid="55555555-8f0a-4f57-9d0e-6a6d1b2c7e10", shares=(Share(request="r", device="vgpu-1"),))
    after = Manifest(name="moved", uid=before.uid, shares=(Share(request="r", device="vgpu-2"),))
    before.write(shared_bench.claims)
    assert (await shared_bench.answers(kubelet_claim(before)))[before.uid].error == ""
    stamps = trees.stamps(*shared_bench.roots)
    after.write(shared_bench.claims)

    answer = (await shared_bench.answers(kubelet_claim(after)))[after.uid]

    assert "research/moved" in answer.error
    assert "is prepared with r=vgpu-1, its allocation now says r=vgpu-2" in answer.error
    assert "unprepared first" in answer.error
    assert trees.stamps(*shared_bench.roots) == stamps


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("libvgpu-control.so.v1.0.0", "is missing: the enforcement library is not installed"),
        ("ld.so.preload", "is missing: the enforcement library is not installed"),
        ("registry/device-client", "is missing: the enforcement library is not installed"),
    ],
)
async def test_node_without_a_part_of_the_library_set_prepares_nothing(shared_bench: DraBench, file: str, words: str) -> None:
    claim = half_a_gpu("part", uid="66666666-8f0a-4f57-9d0e-6a6d1b2c7e10")
    claim.write(shared_bench.claims)
    path = shared_bench.node.manager_dir / file
    path.rename(path.with_suffix(".away"))

    refused = (await shared_bench.answers(kubelet_claim(claim)))[claim.uid]
    path.with_suffix(".away").rename(path)
    accepted = (await shared_bench.answers(kubelet_claim(claim)))[claim.uid]

    assert refused.error.startswith(f"{path} {words}")
    assert accepted.error == ""
    await shared_bench.unprepare_answers(kubelet_claim(claim))
    await shared_bench.until_trash_is_empty()


async def test_gpu_without_a_device_node_is_refused_and_leaves_nothing(shared_bench: DraBench) -> None:
    claim = half_a_gpu("node", device="vgpu-6", uid="66666666-8f0a-4f57-9d0e-6a6d1b2c7e10")
    claim.write(shared_bench.claims)
    (shared_bench.node.dev_root / "nvidia6").unlink()
    before = trees.stamps(*shared_bench.roots)

    answer = (await shared_bench.answers(kubelet_claim(claim)))[claim.uid]

    assert "research/node" in answer.error
    assert f"has no device node under {shared_bench.node.dev_root}" in answer.error
    assert trees.stamps(*shared_bench.roots) == before


async def test_manifest_that_is_no_yaml_is_named(shared_bench: DraBench) -> None:
    (shared_bench.claims / "broken.yaml").write_text("{")

    answer = (await shared_bench.answers(Claim(namespace="research", name="absent", uid=UID)))[UID]
    (shared_bench.claims / "broken.yaml").unlink()

    assert f"{shared_bench.claims}/broken.yaml is no YAML" in answer.error
