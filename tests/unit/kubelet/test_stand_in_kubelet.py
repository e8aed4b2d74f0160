"""The stand-in kubelet registers a correct plugin and refuses each wrong one in kubelet's words."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import pluginregistration
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_registrar import find_sockets
from vgpu_testkit.kubelet_sample_plugin import CLAIM_A, DRIVER
from vgpu_testkit.kubelet_values import Accepted, Deregistered, KubeletRefusal, Refused, Timings


def endpoint_of(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins" / "dra.sock"


def registration_socket(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins_registry" / "r.sock"


async def first_refusal(
    kubelet_dir: Path,
    info: pluginregistration.PluginInfo,
    *,
    before_info: Callable[[], Awaitable[object]] | None = None,
    release: str = "1.36",
) -> tuple[str, list[tuple[bool, str]]]:
    """The reason of the first verdict, and what the plugin was told by then."""
    registration = sample.Registration(info, before_info=before_info)
    async with (
        sample.served(registration_socket(kubelet_dir), registration),
        Kubelet(kubelet_dir, release=release) as kubelet,
    ):
        (verdict, *_) = await kubelet.registrations_reach(1)
        assert isinstance(verdict, Refused)
        return verdict.reason, registration.statuses


async def test_correct_plugin_is_accepted_and_told_so(kubelet_dir: Path) -> None:
    endpoint, socket = endpoint_of(kubelet_dir), registration_socket(kubelet_dir)
    registration = sample.Registration(sample.plugin_info(endpoint, "v1.DRAPlugin", "v1beta1.DRAPlugin"))
    async with (
        sample.served(endpoint, sample.ServiceV1()),
        sample.served(socket, registration),
        Kubelet(kubelet_dir) as kubelet,
    ):
        accepted = await kubelet.registered(DRIVER)

        assert accepted == Accepted(socket=str(socket), driver="gpu.example.com", endpoint=str(endpoint), service="v1.DRAPlugin")
        assert registration.statuses == [(True, "")]


async def test_empty_endpoint_means_the_registration_socket(kubelet_dir: Path) -> None:
    socket = registration_socket(kubelet_dir)
    registration = sample.Registration(sample.plugin_info("", "v1.DRAPlugin"))
    async with sample.served(socket, registration, sample.ServiceV1()), Kubelet(kubelet_dir) as kubelet:
        accepted = await kubelet.registered(DRIVER)

        assert accepted.endpoint == str(socket)


async def test_socket_in_a_sub_directory_is_found(kubelet_dir: Path) -> None:
    endpoint = endpoint_of(kubelet_dir)
    registration = sample.Registration(sample.plugin_info(endpoint, "v1.DRAPlugin"))
    async with Kubelet(kubelet_dir) as kubelet:
        async with sample.served(kubelet_dir / "plugins_registry" / "sub" / "r.sock", registration):
            accepted = await kubelet.registered(DRIVER)

        assert accepted.socket == str(kubelet_dir / "plugins_registry" / "sub" / "r.sock")


async def test_socket_whose_name_starts_with_a_dot_is_ignored(kubelet_dir: Path) -> None:
    registry = kubelet_dir / "plugins_registry"
    hidden = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin", driver="hidden.example.com"))
    seen = sample.Registration(sample.plugin_info("/b.sock", "v1.DRAPlugin", driver="seen.example.com"))
    async with sample.served(registry / ".r.sock", hidden), sample.served(registry / "r.sock", seen):
        async with Kubelet(kubelet_dir) as kubelet:
            await kubelet.registered("seen.example.com")

        assert [verdict.socket for verdict in kubelet.registrations] == [str(registry / "r.sock")]
        assert hidden.info_calls == 0


async def test_only_sockets_that_are_not_hidden_are_found(kubelet_dir: Path) -> None:
    (kubelet_dir / "file.sock").touch()
    async with (
        sample.served(kubelet_dir / "a.sock"),
        sample.served(kubelet_dir / "sub" / "b.sock"),
        sample.served(kubelet_dir / ".c.sock"),
        sample.served(kubelet_dir / ".hidden" / "d.sock"),
    ):
        assert sorted(find_sockets(kubelet_dir)) == [f"{kubelet_dir}/a.sock", f"{kubelet_dir}/sub/b.sock"]


async def test_get_info_answered_after_one_second_is_refused(kubelet_dir: Path) -> None:
    info = sample.plugin_info("/a.sock", "v1.DRAPlugin")

    reason, statuses = await first_refusal(kubelet_dir, info, before_info=asyncio.Event().wait)

    # The description is ours or the server's: both watch the same deadline.
    assert reason.startswith("GetInfo: rpc error: code = DeadlineExceeded desc = ")
    assert statuses == []


async def test_get_info_that_fails_is_refused(kubelet_dir: Path) -> None:
    async def fail() -> None:
        raise GRPCError(Status.INTERNAL, "no")

    reason, _ = await first_refusal(kubelet_dir, sample.plugin_info("/a.sock", "v1.DRAPlugin"), before_info=fail)

    assert reason == "GetInfo: rpc error: code = Internal desc = no"


async def test_plugin_of_another_type_is_refused(kubelet_dir: Path) -> None:
    info = pluginregistration.PluginInfo(
        type="DevicePlugin", name=DRIVER, endpoint="/a.sock", supported_versions=["v1.DRAPlugin"]
    )

    reason, statuses = await first_refusal(kubelet_dir, info)

    expected = (
        "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin "
        f"at socket {registration_socket(kubelet_dir)}"
    )
    assert reason == expected
    assert statuses == [(False, expected)]


@pytest.mark.parametrize(
    ("driver", "endpoint", "versions", "words"),
    [
        (DRIVER, "/a.sock", ["v2.DRAPlugin", "1.0.0"], "none of the gRPC services ['v2.DRAPlugin', '1.0.0']"),
        (DRIVER, "/a.sock", ["v1"], "none of the gRPC services ['v1']"),
        (DRIVER, "/a.sock", ["v1alpha1.DRAResourceHealth"], "none of the gRPC services"),
        (DRIVER, "/a.sock", [], "empty list for supported gRPC services"),
        (DRIVER, "plugins/dra.sock", ["v1.DRAPlugin"], "endpoint 'plugins/dra.sock' of DRA driver"),
        ("GPU.example.com", "/a.sock", ["v1.DRAPlugin"], "invalid DRA driver name 'GPU.example.com'"),
        ("", "/a.sock", ["v1.DRAPlugin"], "invalid DRA driver name ''"),
        ("a" * 64, "/a.sock", ["v1.DRAPlugin"], "invalid DRA driver name 'aaaa"),
    ],
)
async def test_invalid_plugin_info_is_refused_and_the_plugin_told(
    kubelet_dir: Path, driver: str, endpoint: str, versions: list[str], words: str
) -> None:
    reason, statuses = await first_refusal(kubelet_dir, sample.plugin_info(endpoint, *versions, driver=driver))

    assert reason.startswith("RegisterPlugin error -- plugin validation failed with err: ")
    assert words in reason
    assert statuses == [(False, reason)]


async def test_release_1_33_refuses_a_plugin_of_v1_only(kubelet_dir: Path) -> None:
    info = sample.plugin_info("/a.sock", "v1.DRAPlugin")

    reason, _ = await first_refusal(kubelet_dir, info, release="1.33")

    assert "none of the gRPC services ['v1.DRAPlugin'] of gpu.example.com are supported" in reason


async def test_endpoint_of_another_instance_is_refused_until_the_socket_is_made_again(kubelet_dir: Path) -> None:
    registry = kubelet_dir / "plugins_registry"
    first = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    second = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    retried = sample.Registration(sample.plugin_info("/c.sock"))
    async with Kubelet(kubelet_dir, timings=Timings(backoff_s=0.01)) as kubelet, AsyncExitStack() as first_served:
        await first_served.enter_async_context(sample.served(registry / "1.sock", first))
        await kubelet.registered(DRIVER)
        async with sample.served(registry / "2.sock", second):
            (_, refused) = await kubelet.registrations_reach(2)
            await first_served.aclose()
            async with sample.served(registry / "3.sock", retried):
                await kubelet.until(lambda: retried.info_calls == 4)
        calls_before = second.info_calls
        async with sample.served(registry / "2.sock", second):
            accepted = await kubelet.registered(DRIVER)

    expected = (
        "RegisterPlugin error -- plugin registration failed with err: "
        "endpoint /a.sock already registered for DRA driver plugin gpu.example.com"
    )
    assert refused == Refused(socket=str(registry / "2.sock"), reason=expected)
    assert calls_before == 1
    assert accepted.socket == str(registry / "2.sock")
    assert second.statuses == [(False, expected), (True, "")]


async def test_same_endpoint_of_another_driver_is_accepted(kubelet_dir: Path) -> None:
    registry = kubelet_dir / "plugins_registry"
    first = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    second = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin", driver="nic.example.com"))
    async with (
        sample.served(registry / "1.sock", first),
        sample.served(registry / "2.sock", second),
        Kubelet(kubelet_dir) as kubelet,
    ):
        await kubelet.registered(DRIVER)
        accepted = await kubelet.registered("nic.example.com")

    assert accepted.endpoint == "/a.sock"


async def test_error_from_notify_is_retried_from_get_info(kubelet_dir: Path) -> None:
    failures = [GRPCError(Status.INTERNAL, "not now")]

    async def fail_once() -> None:
        if failures:
            raise failures.pop()

    registration = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"), before_status=fail_once)
    socket = registration_socket(kubelet_dir)
    async with sample.served(socket, registration), Kubelet(kubelet_dir) as kubelet:
        await kubelet.registered(DRIVER)

        assert kubelet.registrations == (
            Refused(socket=str(socket), reason="NotifyRegistrationStatus: rpc error: code = Internal desc = not now"),
            Accepted(socket=str(socket), driver="gpu.example.com", endpoint="/a.sock", service="v1.DRAPlugin"),
        )
        assert registration.info_calls == 2


async def test_refused_plugin_is_asked_again_with_growing_pauses(kubelet_dir: Path) -> None:
    asked: list[float] = []

    async def note_time() -> None:
        asked.append(asyncio.get_running_loop().time())

    registration = sample.Registration(sample.plugin_info("/a.sock"), before_info=note_time)
    async with (
        sample.served(registration_socket(kubelet_dir), registration),
        Kubelet(kubelet_dir, timings=Timings(backoff_s=0.05)) as kubelet,
    ):
        await kubelet.registrations_reach(4)

    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert [pause >= least for pause, least in zip(pauses, [0.05, 0.1, 0.2], strict=True)] == [True, True, True]


async def test_removed_socket_is_a_deregistration(kubelet_dir: Path) -> None:
    socket = registration_socket(kubelet_dir)
    registration = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    async with Kubelet(kubelet_dir) as kubelet:
        async with sample.served(socket, registration):
            await kubelet.registered(DRIVER)
        (_, gone) = await kubelet.registrations_reach(2)

        assert gone == Deregistered(socket=str(socket), driver="gpu.example.com", endpoint="/a.sock")
        with pytest.raises(KubeletRefusal, match=r"DRA driver gpu\.example\.com is not registered"):
            await kubelet.prepare(DRIVER, [CLAIM_A])


async def test_socket_created_again_is_deregistered_then_registered(kubelet_dir: Path) -> None:
    socket = registration_socket(kubelet_dir)
    old = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    new = sample.Registration(sample.plugin_info("/b.sock", "v1.DRAPlugin"))
    async with Kubelet(kubelet_dir) as kubelet, sample.served(socket, old):
        await kubelet.registered(DRIVER)
        socket.unlink()
        async with sample.served(socket, new):
            verdicts = await kubelet.registrations_reach(3)

    assert verdicts[1:] == (
        Deregistered(socket=str(socket), driver="gpu.example.com", endpoint="/a.sock"),
        Accepted(socket=str(socket), driver="gpu.example.com", endpoint="/b.sock", service="v1.DRAPlugin"),
    )


async def test_chmod_of_the_socket_is_not_a_new_socket(kubelet_dir: Path) -> None:
    registry = kubelet_dir / "plugins_registry"
    first = sample.Registration(sample.plugin_info("/a.sock", "v1.DRAPlugin"))
    later = sample.Registration(sample.plugin_info("/b.sock", "v1.DRAPlugin", driver="nic.example.com"))
    async with Kubelet(kubelet_dir) as kubelet, sample.served(registry / "1.sock", first):
        await kubelet.registered(DRIVER)
        (registry / "1.sock").chmod(0o600)
        async with sample.served(registry / "2.sock", later):
            await kubelet.registered("nic.example.com")

            assert first.info_calls == 1
