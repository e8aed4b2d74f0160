"""Who of a pod refers to a claim, in all the ways a pod can."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_dra.pod_claims import ConsumerPod, consumer_pod
from vgpu_state.claims import ContainerKind
from vgpu_state.errors import MalformedInput
from vgpu_testkit.dra_assigned import consumer
from vgpu_testkit.dra_values import CLAIM, POD

WHO = "pod research/two-workers-0"


def pod(*, spec: Any = None, status: Any = None) -> dict[str, Any]:
    metadata = {"namespace": "research", "name": "two-workers-0", "uid": str(POD.uid)}
    return {"kind": "Pod", "metadata": metadata, "spec": spec or {}, "status": status}


def using(name: str, *claims: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "example", "resources": {"claims": list(claims)}, **fields}


def entry(name: str, *, claim: str | None = None) -> dict[str, Any]:
    return {"name": name, "resourceClaimName": claim} if claim else {"name": name, "resourceClaimTemplateName": "template"}


def test_containers_are_found_in_the_pods_order_with_what_they_refer_to() -> None:
    spec = {
        "resourceClaims": [entry("gpus", claim="two-workers")],
        "initContainers": [
            using("check", {"name": "gpus", "request": "server"}),
            {"name": "fetch", "image": "example"},
            using("watch", {"name": "gpus"}, restartPolicy="Always"),
            using("warm", {"name": "gpus"}, restartPolicy="OnFailure"),
        ],
        "containers": [
            using("serve", {"name": "gpus", "request": "server"}, {"name": "gpus", "request": ""}),
            using("train", {"name": "gpus", "request": "trainer"}, {"name": "gpus", "request": "server"}),
            {"name": "log", "image": "example", "resources": None},
        ],
    }

    assert consumer_pod(pod(spec=spec), CLAIM) == ConsumerPod(
        pod=POD,
        containers=(
            consumer("check", "server", kind=ContainerKind.INIT),
            consumer("watch", None, kind=ContainerKind.SIDECAR, position=2),
            consumer("warm", None, kind=ContainerKind.INIT, position=3),
            consumer("serve", None, "server"),
            consumer("train", "server", "trainer"),
        ),
    )


def test_claim_from_a_template_is_the_one_that_the_status_names() -> None:
    spec = {
        "resourceClaims": [entry("gpus"), entry("nic"), entry("none"), entry("late")],
        "containers": [using("train", *({"name": name} for name in ("gpus", "nic", "none", "late", "unknown")))],
    }
    statuses = [
        {"name": "gpus", "resourceClaimName": "two-workers"},
        {"name": "nic", "resourceClaimName": "nic-x7k2q"},
        {"name": "none"},
    ]

    found = consumer_pod(pod(spec=spec, status={"resourceClaimStatuses": statuses}), CLAIM)

    assert found.containers == (consumer("train", None, other_claims=("nic-x7k2q",)),)


def test_claim_that_is_known_by_two_names_is_one() -> None:
    spec = {
        "resourceClaims": [entry("a", claim="two-workers"), entry("b", claim="two-workers"), entry("c", claim="zeta")],
        "containers": [using("train", {"name": "c"}, {"name": "b", "request": "trainer"}, {"name": "a", "request": "server"})],
    }

    assert consumer_pod(pod(spec=spec), CLAIM).containers == (consumer("train", "server", "trainer", other_claims=("zeta",)),)


def test_claim_of_extended_resources_is_its_containers_by_the_status_mapping() -> None:
    spec = {
        "resourceClaims": [entry("nic", claim="nic")],
        "initContainers": [{"name": "warm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "containers": [
            using("train", {"name": "nic"}, limits={"nvidia.com/gpu": "2"}),
            {"name": "log", "image": "example"},
        ],
    }
    mappings = [
        {"containerName": "train", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"},
        {"containerName": "train", "resourceName": "nvidia.com/big", "requestName": "container-0-request-1"},
        {"containerName": "warm", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"},
    ]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "two-workers", "requestMappings": mappings}}

    assert consumer_pod(pod(spec=spec, status=status), CLAIM).containers == (
        consumer("warm", "container-0-request-0", kind=ContainerKind.INIT),
        consumer("train", "container-0-request-0", "container-0-request-1", other_claims=("nic",)),
    )


def test_claim_of_extended_resources_is_another_claim_of_its_containers() -> None:
    spec = {
        "resourceClaims": [entry("gpus", claim="two-workers")],
        "containers": [using("train", {"name": "gpus"}), using("serve", {"name": "gpus"})],
    }
    mappings = [{"containerName": "train", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}]
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": mappings}}

    assert consumer_pod(pod(spec=spec, status=status), CLAIM).containers == (
        consumer("train", None, other_claims=("extended",)),
        consumer("serve", None),
    )


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": [{"name": "log"}]},
        {"containers": [using("log", {"name": "gpus"})], "resourceClaims": [entry("gpus", claim="another")]},
        {"containers": None, "initContainers": None, "resourceClaims": None},
    ],
)
def test_pod_that_does_not_refer_to_the_claim_has_no_container_of_it(spec: dict[str, Any]) -> None:
    assert consumer_pod(pod(spec=spec), CLAIM) == ConsumerPod(pod=POD, containers=())


GPUS = [entry("gpus", claim="two-workers")]


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        (
            {"metadata": {"namespace": "research", "name": "two-workers-0"}},
            f"metadata of a pod that claim {CLAIM} is reserved for: field uid is missing",
        ),
        ({}, f"metadata of a pod that claim {CLAIM} is reserved for: field metadata is missing"),
        ({**pod(), "spec": []}, f"{WHO}: field spec is of type list; expected an object"),
        (
            pod(spec={"containers": {"name": "train"}}),
            f"{WHO} spec: field containers is of type dict; expected a list",
        ),
        (pod(spec={"containers": [{}]}), f"{WHO} spec.containers[0]: field name is missing"),
        (
            pod(spec={"initContainers": [using("../x")]}),
            f"{WHO} spec.initContainers[0]: container name is '../x'; expected a DNS label of at most 63 characters",
        ),
        (
            pod(
                spec={"containers": [using("train", {"name": "gpus"}, {"name": "gpus", "request": "A"})], "resourceClaims": GPUS}
            ),
            f"{WHO} spec.containers[0].resources.claims[1]: request name is 'A'; expected a DNS label, or two joined by a slash",
        ),
        (
            pod(spec={"containers": [using("train", {"request": "a"})]}),
            f"{WHO} spec.containers[0].resources.claims[0]: field name is missing",
        ),
        (
            pod(spec={"resourceClaims": [{"name": "gpus", "resourceClaimName": 5}]}),
            f"{WHO} spec.resourceClaims[0]: field resourceClaimName is of type int; expected a string",
        ),
        (
            pod(status={"resourceClaimStatuses": [{}]}),
            f"{WHO} status.resourceClaimStatuses[0]: field name is missing",
        ),
        (
            pod(status={"extendedResourceClaimStatus": {"requestMappings": [{"containerName": "train", "requestName": "a"}]}}),
            f"{WHO} status.extendedResourceClaimStatus: field resourceClaimName is missing",
        ),
        (
            pod(status={"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": [{}]}}),
            f"{WHO} status.extendedResourceClaimStatus.requestMappings[0]: field containerName is missing",
        ),
    ],
)
def test_malformed_pod_is_refused_naming_the_field(doc: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        consumer_pod(doc, CLAIM)

    assert str(refusal.value) == words
