"""Claims from an API server: a strict one in this process, reached through a kubeconfig."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from vgpu_dra.effects import kube_api
from vgpu_dra.effects.api_claims import ApiClaims
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import NotReady, PreconditionFailed
from vgpu_testkit.dra_values import CLAIM, CLAIM_UID

ROUTE = "/apis/resource.k8s.io/v1/namespaces/research/resourceclaims/two-workers"
OBJECT = {"kind": "ResourceClaim", "metadata": {"namespace": "research", "name": "two-workers", "uid": CLAIM_UID}}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiServer:
    """Answers one GET and refuses everything else; `answer` may be replaced."""

    def __init__(self) -> None:
        self.answer: Handler = self._claim
        self.requests: list[str] = []
        self.port = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        if request.headers.get("Authorization") != "Bearer of-the-test":
            return status(401, "Unauthorized")
        return await self.answer(request)

    async def _claim(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return status(405, "MethodNotAllowed")
        if request.path_qs != ROUTE:
            return status(404, "NotFound")
        return web.json_response(OBJECT)


def status(code: int, reason: str) -> web.Response:
    """A refusal as the API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return web.Response(status=code, body=json.dumps(body), content_type="application/json")


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture
async def claims(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiClaims]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
        "users": [{"name": "test", "user": {"token": "of-the-test"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    connection = KubeApi(partial(kube_api.connect, tmp_path / "kubeconfig"))
    yield ApiClaims(connection)
    await connection.close()


async def refusal(claims: ApiClaims) -> str:
    with pytest.raises(NotReady) as refused:
        await claims.fetch(CLAIM)
    return str(refused.value)


async def test_claim_is_read_by_its_name_and_by_nothing_else(api: ApiServer, claims: ApiClaims) -> None:
    assert await claims.fetch(CLAIM) == OBJECT
    assert await claims.fetch(CLAIM) == OBJECT
    assert api.requests == [f"GET {ROUTE}", f"GET {ROUTE}"]


async def test_claims_that_are_read_at_once_share_one_client(api: ApiServer, claims: ApiClaims) -> None:
    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(claims.fetch(CLAIM)) for _ in range(8)]

    assert [read.result() for read in reads] == [OBJECT] * 8


async def test_claim_that_does_not_exist_is_refused_for_good(claims: ApiClaims) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        await claims.fetch(ClaimRef(namespace="research", name="none", uid=CLAIM_UID))

    assert str(refused.value) == "ResourceClaim research/none does not exist"


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (429, "TooManyRequests", f"API server cannot answer GET {ROUTE}: 429 "),
        (500, "InternalError", f"API server cannot answer GET {ROUTE}: 500 "),
    ],
)
async def test_refusal_of_the_server_is_asked_again(
    api: ApiServer, claims: ApiClaims, code: int, reason: str, words: str
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return status(code, reason)

    api.answer = refuse

    assert (await refusal(claims)).startswith(words)


async def test_refusal_that_only_people_can_change_is_refused_for_good(api: ApiServer, claims: ApiClaims) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return status(422, "Invalid")

    api.answer = refuse

    with pytest.raises(PreconditionFailed, match=r"^API server refused ResourceClaim research/two-workers: 422 "):
        await claims.fetch(CLAIM)


@pytest.mark.parametrize("code", [401, 403])
async def test_api_server_that_does_not_know_us_yet_is_asked_again(api: ApiServer, claims: ApiClaims, code: int) -> None:
    async def forbid(_: web.Request) -> web.StreamResponse:
        return status(code, "Forbidden")

    api.answer = forbid

    assert (await refusal(claims)).startswith(f"API server refused ResourceClaim research/two-workers: {code} ")


async def test_connection_that_breaks_is_asked_again(api: ApiServer, claims: ApiClaims) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    api.answer = hang_up

    assert (await refusal(claims)).startswith("API server is away: ")


async def test_answer_that_is_cut_off_is_asked_again(api: ApiServer, claims: ApiClaims) -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"kind"')
        assert request.transport is not None
        request.transport.abort()
        return response

    api.answer = cut_off

    assert (await refusal(claims)).startswith("API server is away: ")


@pytest.mark.parametrize("body", [b"not json", b"[]", b'"text"', b"null", b""])
async def test_answer_that_is_no_object_is_asked_again(api: ApiServer, claims: ApiClaims, body: bytes) -> None:
    """A proxy between may answer anything."""

    async def nonsense(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    api.answer = nonsense

    assert f"the answer to GET {ROUTE} is no " in await refusal(claims)


async def test_server_that_is_away_is_asked_again(claims: ApiClaims, api: ApiServer, tmp_path: Path) -> None:
    unused = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = unused.sockets[0].getsockname()[1]
    unused.close()
    await unused.wait_closed()
    text = (tmp_path / "kubeconfig").read_text().replace(f":{api.port}", f":{port}")
    (tmp_path / "kubeconfig").write_text(text)

    assert (await refusal(claims)).startswith("API server is away: ")


async def test_node_without_a_way_to_the_server_is_said(claims: ApiClaims, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").unlink()

    message = await refusal(claims)

    assert message.startswith("no way to the API server: ")
    assert message.endswith("(in a cluster, or with KUBECONFIG)")
