"""The stand-in kubelet's connections to a plugin: which instance is called, what a lost one means, bytes like grpc-go's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpclib.server
import h2.config
import h2.connection
import h2.events
import pytest
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.metadata import decode_timeout

from vgpu_proto import dra_health_v1alpha1
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_sample_plugin import CLAIM_A, CLAIM_B, DRIVER, UID_A, UID_B
from vgpu_testkit.kubelet_values import KubeletRefusal, Refused, Timings


async def test_call_goes_to_the_newest_connected_instance(kubelet_dir: Path) -> None:
    registry, plugins = kubelet_dir / "plugins_registry", kubelet_dir / "plugins"
    old, new = sample.ServiceV1(), sample.ServiceV1()
    old_registration = sample.Registration(sample.plugin_info(plugins / "1.sock", "v1.DRAPlugin"))
    new_registration = sample.Registration(sample.plugin_info(plugins / "2.sock", "v1.DRAPlugin"))
    one, two = str(plugins / "1.sock"), str(plugins / "2.sock")
    async with (
        Kubelet(kubelet_dir) as kubelet,
        sample.served(plugins / "1.sock", old),
        sample.served(registry / "1.sock", old_registration),
    ):
        await kubelet.registered(DRIVER)
        async with sample.served(registry / "2.sock", new_registration):
            async with sample.served(plugins / "2.sock", new):
                await kubelet.until(lambda: kubelet.connected_endpoints(DRIVER) == (two, one))
                await kubelet.prepare(DRIVER, [CLAIM_A])
            await kubelet.until(lambda: kubelet.connected_endpoints(DRIVER) == (one,))
            await kubelet.prepare(DRIVER, [CLAIM_B])

        assert new.prepared == [(UID_A,)]
        assert old.prepared == [(UID_B,)]


async def test_lost_connection_is_noticed_and_dialled_again(kubelet_dir: Path) -> None:
    endpoint = kubelet_dir / "plugins" / "dra.sock"
    registration = sample.Registration(sample.plugin_info(endpoint, "v1.DRAPlugin"))
    service = sample.ServiceV1()
    async with (
        Kubelet(kubelet_dir) as kubelet,
        sample.served(kubelet_dir / "plugins_registry" / "r.sock", registration),
    ):
        async with sample.served(endpoint, service):
            await kubelet.until(lambda: kubelet.connected_endpoints(DRIVER) == (str(endpoint),))
        await kubelet.until(lambda: kubelet.connected_endpoints(DRIVER) == ())
        with pytest.raises(KubeletRefusal, match="no connected plugin instance"):
            await kubelet.prepare(DRIVER, [CLAIM_A])
        async with sample.served(endpoint, service):
            await kubelet.until(lambda: kubelet.connected_endpoints(DRIVER) == (str(endpoint),))
            await kubelet.prepare(DRIVER, [CLAIM_A])

        assert service.prepared == [(UID_A,)]
        assert registration.info_calls == 1


async def test_first_request_carries_the_headers_of_grpc_go_and_one_second(kubelet_dir: Path) -> None:
    headers: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def read_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        peer.initiate_connection()
        writer.write(peer.data_to_send())
        while not headers.done():
            for event in peer.receive_data(await reader.read(65536)):
                if isinstance(event, h2.events.RequestReceived):
                    headers.set_result({str(name): str(value) for name, value in event.headers})
        writer.close()

    registry = kubelet_dir / "plugins_registry"
    async with Kubelet(kubelet_dir):
        server = await asyncio.start_unix_server(read_headers, path=str(registry / "r.sock"))
        received = await headers
        server.close()
        await server.wait_closed()

    assert received[":authority"] == "localhost"
    assert received[":path"] == "/pluginregistration.Registration/GetInfo"
    assert received["te"] == "trailers"
    assert 0.5 < decode_timeout(received["grpc-timeout"]) <= 1.0


class RawCodec(CodecBase):
    """Sends and receives bytes as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type) -> bytes:
        return message

    def decode(self, data: bytes, message_type: type) -> bytes:
        return data


class RawInfo:
    """Answers GetInfo with bytes that may be no message."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def get_info(self, stream: grpclib.server.Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(self._answer)

    def __mapping__(self) -> dict[str, Handler]:
        handler = Handler(self.get_info, Cardinality.UNARY_UNARY, bytes, bytes)
        return {"/pluginregistration.Registration/GetInfo": handler}


async def test_answer_with_text_that_is_not_utf_8_fails_as_in_grpc_go(kubelet_dir: Path) -> None:
    name_field_of_one_bad_byte = b"\x12\x01\xff"
    server = grpclib.server.Server([RawInfo(name_field_of_one_bad_byte)], codec=RawCodec())
    async with Kubelet(kubelet_dir) as kubelet:
        await server.start(path=str(kubelet_dir / "plugins_registry" / "r.sock"))
        (verdict,) = await kubelet.registrations_reach(1)
        server.close()
        await server.wait_closed()

    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith("GetInfo: rpc error: code = Internal desc = grpc: failed to unmarshal")


class Health(dra_health_v1alpha1.DraResourceHealthBase):
    """Reports one unhealthy device, as of a time, and holds the stream open."""

    def __init__(self, *, as_of_s: int, device: str = "gpu-0", message: str = "") -> None:
        self._entry = dra_health_v1alpha1.DeviceHealth(
            device=dra_health_v1alpha1.DeviceIdentifier(pool_name="node-1", device_name=device),
            health=dra_health_v1alpha1.HealthStatus(2),
            last_updated_time=as_of_s,
            message=message,
        )

    async def node_watch_resources(
        self, node_watch_resources_request: dra_health_v1alpha1.NodeWatchResourcesRequest
    ) -> AsyncIterator[dra_health_v1alpha1.NodeWatchResourcesResponse]:
        yield dra_health_v1alpha1.NodeWatchResourcesResponse(devices=[self._entry])
        await asyncio.Event().wait()


async def test_release_1_36_reads_the_health_stream_and_holds_it(kubelet_dir: Path) -> None:
    async with sample.registered(kubelet_dir, sample.ServiceV1(), Health(as_of_s=int(time.time()))) as kubelet:
        await kubelet.until(lambda: bool(kubelet.health(DRIVER)))

        assert dict(kubelet.health(DRIVER)) == {("node-1", "gpu-0"): "UNHEALTHY"}
        assert dict(kubelet.health(DRIVER, in_s=40)) == {("node-1", "gpu-0"): "UNKNOWN"}
        assert kubelet.health_attempts(DRIVER) == 1


async def test_health_of_long_ago_is_unknown(kubelet_dir: Path) -> None:
    async with sample.registered(kubelet_dir, sample.ServiceV1(), Health(as_of_s=1)) as kubelet:
        await kubelet.until(lambda: bool(kubelet.health(DRIVER)))

        assert dict(kubelet.health(DRIVER)) == {("node-1", "gpu-0"): "UNKNOWN"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Health(as_of_s=0), "health of device gpu-0: last updated 0"),
        (Health(as_of_s=1, device=""), "a name is missing"),
        (Health(as_of_s=1, message="x" * 1025), "the message has 1025 characters"),
    ],
)
async def test_health_that_kubelet_can_make_nothing_of_ends_the_test(kubelet_dir: Path, wrong: Health, words: str) -> None:
    with pytest.raises(BaseExceptionGroup) as failure:
        async with sample.registered(kubelet_dir, sample.ServiceV1(), wrong) as kubelet:
            await kubelet.until(lambda: bool(kubelet.health(DRIVER)))

    faults: list[BaseException] = [failure.value]
    while isinstance(faults[0], BaseExceptionGroup):
        faults = [one for group in faults if isinstance(group, BaseExceptionGroup) for one in group.exceptions]
    assert [type(fault) for fault in faults] == [KubeletRefusal]
    assert words in str(faults[0])


async def test_plugin_without_health_is_asked_for_it_again_and_again(kubelet_dir: Path) -> None:
    timings = Timings(health_retry_s=0.01)
    async with sample.registered(kubelet_dir, sample.ServiceV1(), timings=timings) as kubelet:
        await kubelet.until(lambda: kubelet.health_attempts(DRIVER) >= 3)


async def test_release_1_35_opens_no_health_stream(kubelet_dir: Path) -> None:
    async with sample.registered(kubelet_dir, sample.ServiceV1(), release="1.35") as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])

        assert kubelet.health_attempts(DRIVER) == 0
