"""What becomes of an API server's answers, good and bad."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio import client

from vgpu_dra.api_errors import ApiAway, ApiConflict, ApiExpired, ApiNotFound, ApiRefused
from vgpu_dra.effects import kube_api
from vgpu_dra.effects.api_claims import ApiClaims
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import PreconditionFailed
from vgpu_testkit.api_environment import cluster_environment
from vgpu_testkit.dra_values import CLAIM_UID

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server that answers every request so; its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def closing(api: KubeApi) -> AsyncIterator[KubeApi]:
    try:
        yield api
    finally:
        await api.close()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[KubeApi]:
    """The requests to an API server that answers every one so."""
    async with serving(answer) as address:

        async def connect() -> Any:
            return client.ApiClient(client.Configuration(host=address))

        async with closing(KubeApi(connect)) as api:
            yield api


def always(status: int, text: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


def streaming(*chunks: bytes) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return answer


async def watched(api: KubeApi) -> list[Any]:
    async with aclosing(api.watch("/x", query={}, timeout_s=5)) as events:
        return [event async for event in events]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ApiRefused),
        (401, ApiRefused),
        (403, ApiRefused),
        (404, ApiNotFound),
        (409, ApiConflict),
        (410, ApiExpired),
        (422, ApiRefused),
        (429, ApiAway),
        (500, ApiAway),
        (503, ApiAway),
    ],
)
async def test_a_status_is_an_error_by_its_reaction_and_says_what_the_server_said(status: int, error: type[Exception]) -> None:
    async with answering(always(status, json.dumps({"kind": "Status", "message": "it is so"}))) as api:
        with pytest.raises(error, match=rf"GET /x: {status} it is so") as caught:
            await api.request("GET", "/x")
    assert type(caught.value) is error


@pytest.mark.parametrize("text", ["", "<html>", "[]", "null", "1", '"ok"', '{"a":'])
async def test_an_answer_that_is_no_object_came_from_something_else(text: str) -> None:
    async with answering(always(200, text)) as api:
        with pytest.raises(ApiAway, match="came from something else than an API server"):
            await api.request("GET", "/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 9000 + "]" * 9000, "recursion depth"), ('{"a": ' + "9" * 5000 + "}", "4300 digits")],
    ids=["nested", "long number"],
)
async def test_json_beyond_all_reason_is_an_answer_that_cannot_be_read(text: str, words: str) -> None:
    async with answering(always(200, text)) as api:
        with pytest.raises(ApiAway, match=rf"^the answer to GET /x cannot be read: .*{words}"):
            await api.request("GET", "/x")


async def test_an_error_page_in_another_encoding_is_an_answer_too() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=502, body="Störung".encode("latin-1"), content_type="text/html")

    async with answering(answer) as api:
        with pytest.raises(ApiAway, match="502 St\ufffdrung"):
            await api.request("GET", "/x")
        with pytest.raises(ApiAway, match="502 St\ufffdrung"):
            await watched(api)


async def test_an_error_page_is_shown_in_part() -> None:
    async with answering(always(403, "<html>" + "x" * 1000)) as api:
        with pytest.raises(ApiRefused) as caught:
            await api.request("GET", "/x")
    assert str(caught.value) == "the API server refused GET /x: 403 <html>" + "x" * 194


async def test_no_server_is_one_that_is_away() -> None:
    async with answering(always(200, "{}")) as api:
        pass

    with pytest.raises(ApiAway, match="API server is away"):
        await api.request("GET", "/x")
    with pytest.raises(ApiAway, match="the watch broke off"):
        await watched(api)
    await api.close()


async def test_events_are_whole_whatever_the_pieces_they_come_in() -> None:
    long = {"type": "ADDED", "object": {"text": "x" * 3_000_000}}
    text = json.dumps(long).encode()

    async with answering(streaming(b'{"type":', b'"A"}\n\n{"ty', b'pe":"B"}\n', text[:999], text[999:], b"\n")) as api:
        assert await watched(api) == [{"type": "A"}, {"type": "B"}, long]


async def test_an_event_that_never_ends_breaks_the_watch_off() -> None:
    async with answering(streaming(*[b"x" * (1 << 20)] * 6)) as api:
        with pytest.raises(ApiAway, match="an event of more than 4194304 bytes"):
            await watched(api)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}, ApiExpired),
        ({"type": "ERROR", "object": {"code": 403, "message": "no"}}, ApiRefused),
        ({"type": "ERROR", "object": {}}, ApiAway),
        ({"type": "ERROR"}, ApiAway),
        ([], ApiAway),
    ],
)
async def test_an_error_event_is_an_error(event: Any, error: type[Exception]) -> None:
    async with answering(streaming(json.dumps(event).encode() + b"\n")) as api:
        with pytest.raises(error) as caught:
            await watched(api)
    assert type(caught.value) is error


async def test_a_claims_name_leads_nowhere_else() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({"kind": "Status", "message": "not found"}, status=404)

    async with answering(answer) as api:
        with pytest.raises(PreconditionFailed, match=r"ResourceClaim a/b/\.\./c does not exist"):
            await ApiClaims(api).fetch(ClaimRef(namespace="a/b", name="../c", uid=CLAIM_UID))

    assert asked == ["/apis/resource.k8s.io/v1/namespaces/a%2Fb/resourceclaims/..%2Fc"]


def with_token(folder: Path, address: str) -> KubeApi:
    """The requests to the API server at an address, with a token, as a kubeconfig in `folder` has it."""
    kubeconfig = Path(cluster_environment(folder, address, node="node-a", token="abc")["KUBECONFIG"])
    return KubeApi(lambda: kube_api.connect(kubeconfig))


async def test_a_netrc_that_names_the_server_keeps_no_request_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password secret\n")

    async def answer(asked: web.Request) -> web.Response:
        return web.json_response({"authorization": asked.headers.get("Authorization")})

    async with serving(answer) as address, closing(with_token(tmp_path, address)) as api:
        assert await api.request("GET", "/x") == {"authorization": "Bearer abc"}


async def test_the_environments_proxy_is_asked_but_for_hosts_that_it_excepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(asked: web.Request) -> web.Response:
        return web.json_response({"asked for": str(asked.url)})

    nobody = "http://127.0.0.1:9"
    async with serving(answer) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        async with closing(with_token(tmp_path, nobody)) as api:
            assert await api.request("GET", "/x") == {"asked for": "http://127.0.0.1:9/x"}
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with closing(with_token(tmp_path, nobody)) as api:
            with pytest.raises(ApiAway, match=r"127\.0\.0\.1:9"):
                await api.request("GET", "/x")
