"""The runtime's end of an NRI connection, built from the plugin's own cores in their other roles.

What it sends is cut as Go cuts it: a message above 4096 bytes as one frame of 4096 and one with the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from vgpu_nri import mux
from vgpu_nri.ttrpc import envelope, frames
from vgpu_nri.ttrpc.connection import ClientConnection, ServerConnection
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.ttrpc.events import RequestReceived, ResponseReceived
from vgpu_proto import nri

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
_REQUEST_TIMEOUT_NS = 1_999_900_000  # what is left of 2 s when containerd has packed a request


class PluginConnection:
    """One plugin that connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._mux = mux.Reader()
        self._calls = ClientConnection()
        self._serves = ServerConnection()
        self._answers: dict[int, asyncio.Future[Response]] = {}
        self.requests: asyncio.Queue[RequestReceived] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def read(self) -> None:
        """Takes in what the plugin sends until it closes."""
        try:
            while data := await self._reader.read(65536):
                for chunk in self._mux.receive_data(data):
                    self._take(chunk)
        except ConnectionError:
            pass  # an aborted connection is a closed one
        finally:
            self.closed.set()
            for answer in self._answers.values():
                answer.cancel()
            self._writer.close()

    def close(self) -> None:
        self._writer.close()

    def send_bytes(self, data: bytes) -> None:
        """Any bytes, for what no runtime would send."""
        self._writer.write(data)

    async def call(
        self, method: str, message: Any, *, timeout_ns: int = _REQUEST_TIMEOUT_NS, service: str = PLUGIN_SERVICE
    ) -> Response:
        """The plugin's answer; cancelled when it closes the connection."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = Request(service=service, method=method, payload=payload, timeout_ns=timeout_ns)
        stream_id, data = self._encode(request)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._answers[stream_id] = answer
        for part in (data[:4096], data[4096:]):
            if part:
                self._writer.write(mux.encode_frame(mux.PLUGIN_CONN, part))
        async with asyncio.timeout(10):
            return await answer

    async def accept_registration(self) -> nri.RegisterPluginRequest:
        """Takes RegisterPlugin, calls Configure, then answers, in the order of the real runtime."""
        asked = await self.requests.get()
        assert asked.request.method == "RegisterPlugin"
        configured = await self.call(
            "Configure", nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.9", request_timeout=2000)
        )
        assert nri.ConfigureResponse.FromString(configured.payload).events == 0x0628
        self.answer(asked, Response())
        return nri.RegisterPluginRequest.FromString(asked.request.payload)

    async def attach(self, containers: Iterable[nri.Container] = (), pods: Iterable[nri.PodSandbox] = ()) -> None:
        """All of it: registration and one whole Synchronize."""
        await self.accept_registration()
        answer = await self.call("Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers))
        assert answer == Response()

    def answer(self, asked: RequestReceived, response: Response) -> None:
        data = self._serves.send_response(asked.stream_id, response)
        self._writer.write(mux.encode_frame(mux.RUNTIME_CONN, data))

    def _encode(self, request: Request) -> tuple[int, bytes]:
        body = envelope.encode_request(request)
        if len(body) <= frames.MAX_SENT_BYTES:
            return self._calls.send_request(request)
        # NRI 0.6 sends Synchronize of any size; the stream's number is taken as for every call.
        stream_id, _ = self._calls.send_request(Request(method=request.method))
        return stream_id, frames.encode(frames.Frame(stream_id, frames.REQUEST, body))

    def _take(self, chunk: mux.Chunk) -> None:
        if chunk.conn_id == mux.RUNTIME_CONN:
            for asked in self._serves.receive_data(chunk.data):
                assert isinstance(asked, RequestReceived), asked
                self.requests.put_nowait(asked)
            return
        for answered in self._calls.receive_data(chunk.data):
            assert isinstance(answered, ResponseReceived), answered
            self._answers.pop(answered.stream_id).set_result(answered.response)


class RuntimeEnd:
    """Plugins as they connect, in order."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[PluginConnection] = asyncio.Queue()

    async def accept(self) -> PluginConnection:
        async with asyncio.timeout(10):
            return await self.connections.get()


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[RuntimeEnd]:
    """A runtime that listens on `path` until the context ends; then its connections are closed too."""
    runtime = RuntimeEnd()
    opened: list[PluginConnection] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = PluginConnection(reader, writer)
        opened.append(connection)
        runtime.connections.put_nowait(connection)
        await connection.read()

    server = await asyncio.start_unix_server(on_connect, path)
    try:
        yield runtime
    finally:
        server.close()
        for connection in opened:
            connection.close()
            await connection.closed.wait()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one unlink on tmpfs
