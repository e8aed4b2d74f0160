"""The pods of a claim, from an API server and from manifests: which of them count, and what keeps them from being known."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client

from vgpu_dra.claim_consumers import ClaimConsumers
from vgpu_dra.effects.api_pods import ApiPods
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.effects.manifest_claims import DirectorySource, ManifestClaims
from vgpu_dra.pod_claims import ConsumerPod
from vgpu_state.claims import PodRef
from vgpu_state.errors import MalformedInput, NotReady, PreconditionFailed, VgpuError
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_values import CLAIM, POD

EXAMPLES = Path(__file__).parents[3] / "examples"


def uid(number: int) -> str:
    return f"{number:08x}-54f1-4c86-9b57-2f1d2b8f4c11"


def pod(name: str, *, number: int, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "research", "name": name, "uid": uid(number)},
        "spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "two-workers"}],
            "containers": [{"name": "train", "resources": {"claims": [{"name": "gpus"}]}}],
        },
        "status": status,
    }


def reserved(*pods: tuple[str, int]) -> dict[str, Any]:
    """The claim, reserved for pods of these names and uids."""
    consumers = [{"resource": "pods", "name": name, "uid": uid(number)} for name, number in pods]
    return {
        "metadata": {"namespace": "research", "name": "two-workers", "uid": str(CLAIM.uid)},
        "status": {"reservedFor": consumers},
    }


def told(pods: tuple[ConsumerPod, ...]) -> list[tuple[str, list[str]]]:
    return [(p.pod.name, [str(c.name) for c in p.containers]) for p in pods]


@pytest.fixture
async def server() -> ApiServer:
    return ApiServer(node="node-a")


@pytest.fixture
async def consumers(server: ApiServer) -> AsyncIterator[ClaimConsumers]:
    async with server.serve() as address:

        async def connect() -> Any:
            return client.ApiClient(client.Configuration(host=address))

        api = KubeApi(connect)
        yield ClaimConsumers(ApiPods(api))
        await api.close()


async def test_pods_are_read_by_name_and_told_in_the_claims_order(server: ApiServer, consumers: ClaimConsumers) -> None:
    for name, number in (("a", 1), ("b", 2), ("unasked", 3)):
        server.pods.put(pod(name, number=number))

    found = await consumers.pods_of(reserved(("b", 2), ("a", 1)), CLAIM)

    assert told(found) == [("b", ["train"]), ("a", ["train"])]
    assert sorted((r.verb, r.path) for r in server.requests) == [
        ("get pod", "/api/v1/namespaces/research/pods/a"),
        ("get pod", "/api/v1/namespaces/research/pods/b"),
    ]


async def test_pod_that_is_gone_or_ended_or_of_another_uid_does_not_count(server: ApiServer, consumers: ClaimConsumers) -> None:
    server.pods.put(pod("replaced", number=99))
    server.pods.put(pod("done", number=3, phase="Succeeded"))
    server.pods.put(pod("broken", number=4, phase="Failed"))
    server.pods.put(pod("runs", number=5, phase="Running"))

    found = await consumers.pods_of(reserved(("gone", 1), ("replaced", 2), ("done", 3), ("broken", 4), ("runs", 5)), CLAIM)

    assert told(found) == [("runs", ["train"])]


@pytest.mark.parametrize("doc", [{**reserved(), "status": {}}, {**reserved(), "status": None}, reserved()])
async def test_claim_that_is_reserved_for_nobody_has_no_pods(consumers: ClaimConsumers, doc: dict[str, Any]) -> None:
    assert await consumers.pods_of(doc, CLAIM) == ()


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, NotReady, "API server refused pod research/a: 401 an error that the test wanted"),
        (403, NotReady, "API server refused pod research/a: 403 an error that the test wanted"),
        (
            404,
            NotReady,
            "the API server's answer is not about pod research/a: 404 an error that the test wanted",
        ),
        (422, PreconditionFailed, "API server refused pod research/a: 422 an error that the test wanted"),
        (
            503,
            NotReady,
            "API server cannot answer GET /api/v1/namespaces/research/pods/a: 503 an error that the test wanted",
        ),
        (0, NotReady, "API server is away: Server disconnected"),
    ],
)
async def test_pod_that_cannot_be_looked_up_is_not_taken_for_gone(
    server: ApiServer, consumers: ClaimConsumers, status: int, kind: type[VgpuError], words: str
) -> None:
    server.pods.put(pod("a", number=1))
    server.fail_next("get pod", status, times=2)  # a connection that breaks may be tried once more beneath us

    with pytest.raises(kind) as refusal:
        await consumers.pods_of(reserved(("a", 1)), CLAIM)

    assert str(refusal.value) == words


async def test_refused_look_up_ends_the_others(server: ApiServer, consumers: ClaimConsumers) -> None:
    server.fail_next("get pod", 500, times=256)

    with pytest.raises(NotReady):
        await consumers.pods_of(reserved(*((f"pod-{i}", i) for i in range(256))), CLAIM)

    assert len(server.requests) <= 8


async def test_malformed_pod_is_refused_naming_it(server: ApiServer, consumers: ClaimConsumers) -> None:
    server.pods.put(pod("a", number=1, resourceClaimStatuses=[{}]))

    with pytest.raises(MalformedInput) as refusal:
        await consumers.pods_of(reserved(("a", 1)), CLAIM)

    assert str(refusal.value) == "pod research/a status.resourceClaimStatuses[0]: field name is missing"


async def test_claim_with_a_malformed_consumer_is_refused(consumers: ClaimConsumers) -> None:
    doc = reserved(("a", 1))
    doc["status"]["reservedFor"][0]["uid"] = "../a"

    with pytest.raises(MalformedInput, match=r"^ResourceClaim status\.reservedFor\[0\]: pod uid is '\.\./a'; expected "):
        await consumers.pods_of(doc, CLAIM)


class Counting:
    """A source that answers when eight are asked for at once, and knows how many were at most."""

    def __init__(self) -> None:
        self.most = 0
        self._asked = 0
        self._together = asyncio.Barrier(8)

    async def fetch_pod(self, pod_ref: PodRef) -> Mapping[str, Any] | None:
        self._asked += 1
        self.most = max(self.most, self._asked)
        await self._together.wait()
        self._asked -= 1
        return pod(pod_ref.name, number=int(pod_ref.uid[:8], 16))


async def test_pods_are_looked_up_eight_at_a_time() -> None:
    source = Counting()
    names = [(f"pod-{i}", i) for i in range(256)]

    async with asyncio.timeout(10):
        found = await ClaimConsumers(source).pods_of(reserved(*names), CLAIM)

    assert [p.pod.name for p in found] == [name for name, _ in names]
    assert source.most == 8


async def test_pods_of_a_manifest_stand_in_the_same_directory() -> None:
    source = DirectorySource(ManifestClaims(EXAMPLES))

    (found,) = await ClaimConsumers(source).pods_of(await source.fetch(CLAIM), CLAIM)

    assert found.pod == POD
    assert [(c.name, c.references) for c in found.containers] == [("train", ("trainer",)), ("serve", ("server",))]


async def test_pod_without_a_manifest_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(pod("b", number=2)))
    source = DirectorySource(ManifestClaims(tmp_path))

    assert told(await ClaimConsumers(source).pods_of(reserved(("a", 1), ("b", 2)), CLAIM)) == [("b", ["train"])]


async def test_pod_that_may_stand_in_a_broken_file_is_not_taken_for_gone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")

    with pytest.raises(MalformedInput, match=rf"^{tmp_path}/a\.yaml is no YAML: "):
        await ClaimConsumers(DirectorySource(ManifestClaims(tmp_path))).pods_of(reserved(("a", 1)), CLAIM)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("resourceClaims", [], "spec.containers[0].resources.claims[0].name: Not found"),
        ("resourceClaims", [{"name": "gpus"}], "spec.resourceClaims[0]: must specify exactly one of"),
        (
            "containers",
            [{"name": "x", "resources": {"claims": [{"name": "gpus"}, {"name": "gpus", "request": "a"}]}}],
            "spec.containers[0].resources.claims[1]: Duplicate value: gpus/a",
        ),
        ("initContainers", [{"name": "train"}], "spec.containers[0].name: Invalid value, or a duplicate: train"),
        ("containers", [], "spec.containers: Required value"),
    ],
)
async def test_stand_in_has_no_pod_that_an_api_server_refuses(server: ApiServer, field: str, value: Any, words: str) -> None:
    document = pod("a", number=1)
    document["spec"][field] = value

    with pytest.raises(ValueError, match=re.escape(words)):
        server.pods.put(document)
