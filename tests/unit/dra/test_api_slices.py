"""How the API server is asked for its release and for a rehearsal, and what it means when the answer is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio import client

from vgpu_dra.api_errors import ApiAway, ApiRefused
from vgpu_dra.effects.api_slices import ApiSlices
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.policy import features
from vgpu_state.ids import NodeName
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.api_slice_gates import Gates

NODE = NodeName("node-a")


class Answering(ApiServer):
    """Answers /version with what it is told."""

    answer: dict[str, Any]

    def _get_version(self, _: web.Request, __: Any) -> web.Response:
        return web.json_response(self.answer)


@asynccontextmanager
async def asked(server: ApiServer) -> AsyncIterator[ApiSlices]:
    async with server.serve() as address:

        async def connect() -> Any:
            return client.ApiClient(client.Configuration(host=address))

        api = KubeApi(connect)
        try:
            yield ApiSlices(api, NODE)
        finally:
            await api.close()


@pytest.mark.parametrize(
    ("answer", "expected"), [({"major": "1", "minor": "37"}, (1, 37)), ({"major": "1", "minor": "36+"}, (1, 36))]
)
async def test_a_release_is_two_numbers_whatever_a_vendor_adds(answer: dict[str, Any], expected: tuple[int, int]) -> None:
    server = Answering(node=NODE)
    server.answer = answer

    async with asked(server) as api:
        assert await api.version() == expected


@pytest.mark.parametrize("answer", [{}, {"major": "1"}, {"major": 1, "minor": 37}, {"major": "1", "minor": "next"}])
async def test_an_answer_without_a_release_is_no_api_servers(answer: dict[str, Any]) -> None:
    server = Answering(node=NODE)
    server.answer = answer

    async with asked(server) as api:
        with pytest.raises(ApiAway, match="it came from something else than an API server"):
            await api.version()


async def test_a_rehearsal_answers_what_would_be_stored_and_stores_nothing() -> None:
    server = ApiServer(node=NODE, gates=Gates(partitionable_devices=False))

    async with asked(server) as api:
        spec = await api.rehearse(features.rehearsal(NODE, version=(1, 37)))

    assert server.slices == []
    assert "consumesCounters" not in spec["devices"][0]
    assert spec["devices"][0]["taints"][0]["key"] == "manager.nvidia.com/rehearsal"


async def test_a_rehearsal_that_is_not_allowed_is_refused() -> None:
    server = ApiServer(node=NODE)
    server.fail_next("rehearse", 403)

    async with asked(server) as api:
        with pytest.raises(ApiRefused, match="403"):
            await api.rehearse(features.rehearsal(NODE, version=(1, 37)))
