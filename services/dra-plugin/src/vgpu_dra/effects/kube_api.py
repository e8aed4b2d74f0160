"""The connection to the API server: one per process, plain documents in and out, every fault an error of `api_errors`.

kubernetes-asyncio costs most of a second and 50 MiB to import, so it is imported at the first request, on a thread: kubelet waits
one second for GetInfo. Its typed calls are not used: they drop fields that a newer API server has.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib import request
from urllib.parse import urlsplit

import aiohttp

from vgpu_daemon import memory
from vgpu_dra.api_errors import ApiAway, ApiConflict, ApiExpired, ApiNotFound, ApiRefused

_USER_AGENT = "vgpu-dra-plugin"  # the API server's audit log and managedFields name us so
_REQUEST_S = 10.0
_LINE_BYTES = 4 << 20  # an object is at most etcd's 1.5 MiB
_REACTIONS: Mapping[int, type[ApiRefused]] = {404: ApiNotFound, 409: ApiConflict, 410: ApiExpired}
_OVERLOADED = 429
_CONTENT_TYPES: Mapping[str, str] = {"PATCH": "application/merge-patch+json"}

Document = Mapping[str, Any]  # Any: JSON


async def connect(kubeconfig: Path | None = None) -> Any:  # Any: kubernetes_asyncio's ApiClient, imported late
    """A client with the pod's service account, or outside a cluster with `kubeconfig`, by default $KUBECONFIG.

    Raises:
        ApiAway: there is neither.
    """
    await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config")
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config(kubeconfig and str(kubeconfig), client_configuration=configuration)
        except config.ConfigException as exc:
            raise ApiAway(f"no way to the API server: {exc} (in a cluster, or with KUBECONFIG)") from exc
    configuration.proxy = configuration.proxy or _proxy(configuration.host or "")
    api = client.ApiClient(configuration)
    api.user_agent = _USER_AGENT
    _close_to_the_environment(api.rest_client)
    memory.keep_what_lives()
    return api


def _proxy(address: str) -> str | None:
    """The proxy that the environment names for an address."""
    url = urlsplit(address)
    return None if request.proxy_bypass(url.hostname or "") else request.getproxies().get(url.scheme)


def _close_to_the_environment(rest: Any) -> None:
    """Has the client look at the environment no more.

    kubernetes-asyncio has aiohttp look for a .netrc and for a proxy at each request, on one thread after the other, which is a
    fifth of what a Prepare costs; and a .netrc that names the API server's host would fail every request that has a token.
    """
    connector = rest.pool_manager.connector
    rest.pool_manager.detach()
    rest.pool_manager = aiohttp.ClientSession(connector=connector)


class KubeApi:
    """Requests to the API server that `connect` leads to, which is asked at the first of them."""

    def __init__(self, connect: Callable[[], Awaitable[Any]] = connect) -> None:
        self._connect = connect
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Document | None = None
    ) -> Document:
        """The document that the API server answers.

        Raises:
            ApiAway: it cannot be reached, is overloaded, or there is no configuration to reach it with.
            ApiRefused: it said no; a subclass where there is more to do than to tell someone.
        """
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(_REQUEST_S):
                response = await self._send(method, path, query=query, body=body)
                async with response:
                    text = await response.text(errors="replace")  # a gateway's error page may be in any encoding
        except (OSError, TimeoutError, aiohttp.ClientError) as exc:
            raise ApiAway(f"API server is away: {exc or type(exc).__name__}") from exc
        _check(response.status, text, what=what)
        return _decoded(text, what=what)

    async def watch(self, path: str, *, query: Mapping[str, str], timeout_s: float) -> AsyncGenerator[Document, None]:
        """The events of a watch as they come, until the API server ends it, which it does after `timeout_s` seconds.

        Raises:
            ApiExpired: the changes since the query's resourceVersion are gone.
            ApiAway: the connection broke, or the API server has not ended it in time: it may be gone without a word.
            ApiRefused: it said no.
        """
        what = f"watch {path}"
        # The server ends a watch in time; where it does not, nobody is there any more.
        limit = aiohttp.ClientTimeout(total=timeout_s + _REQUEST_S, sock_connect=_REQUEST_S)
        asked = {**query, "watch": "true", "timeoutSeconds": str(int(timeout_s))}
        try:
            response = await self._send("GET", path, query=asked, body=None, limit=limit)
            async with response, aclosing(_lines(response.content)) as lines:
                if response.status >= 300:
                    _check(response.status, await response.text(errors="replace"), what=what)
                async for line in lines:
                    event = _decoded(line, what=what)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        _check(int(status.get("code") or 500), json.dumps(status), what=what)
                    yield event
        except (OSError, TimeoutError, aiohttp.ClientError) as exc:
            raise ApiAway(f"the watch broke off: {exc or type(exc).__name__}") from exc

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Document | None,
        limit: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        client = await self._connected()
        response: aiohttp.ClientResponse = await client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": _CONTENT_TYPES.get(method, "application/json")},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limit,
        )
        return response

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
        return self._client


def _check(status: int, text: str, *, what: str) -> None:
    if status < 300:
        return
    message = _message(text)
    if status >= 500 or status == _OVERLOADED:
        raise ApiAway(f"API server cannot answer {what}: {status} {message}")
    raise _REACTIONS.get(status, ApiRefused)(what, status=status, reason=message)


def _message(text: str) -> str:
    """What a Status object says, or the beginning of whatever else was answered."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:200]


def _decoded(text: str | bytes, *, what: str) -> Document:
    try:
        document: Any = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ApiAway(f"the answer to {what} is no JSON: it came from something else than an API server") from exc
    except (ValueError, RecursionError) as exc:
        # What users put into a claim is in it as it came: lists in lists, or a number of thousands of digits.
        raise ApiAway(f"the answer to {what} cannot be read: {exc}") from exc
    if not isinstance(document, dict):
        raise ApiAway(f"the answer to {what} is no object: it came from something else than an API server")
    decoded: Document = document
    return decoded


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. aiohttp's own readline refuses those longer than its buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > _LINE_BYTES:
            raise aiohttp.ClientPayloadError(f"an event of more than {_LINE_BYTES} bytes")
