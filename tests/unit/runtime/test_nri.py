"""What the stand-in runtime asks of plugins, and what it makes of answers, of silence and of faults."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Request, Response
from vgpu_testkit.nri_runtime import NriTimeouts
from vgpu_testkit.pods import ContainerSpec, ContainerState, PodSpec
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_process import Isolation
from vgpu_testkit.runtime_refusals import RuntimeRefused
from vgpu_testkit.runtime_sample_plugin import ALL_EVENTS, CREATE, REMOVE, START, STOP, SamplePlugin, adjustment

_OURS = CREATE | START | STOP | REMOVE
_UID = "0b7e4a1c-2f63-4d0e-9b5a-000000000001"
# Short, so that a test of a late plugin is; long enough for a busy machine to answer in.
_TIMEOUTS = NriTimeouts(registration_s=0.5, request_s=0.5)


@pytest.fixture
async def node(make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]]) -> AsyncIterator[StandInRuntime]:
    """A runtime of containerd 2.1; nothing here depends on how its containers are isolated."""
    async with make_runtime(isolation=Isolation.PATHS_MAPPED, timeouts=_TIMEOUTS) as made:
        yield made


@pytest.fixture
def socket(folder: Path) -> Path:
    return folder / "nri/nri.sock"


def _on(**answers: Response) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        name = request.method
        if name == "StateChange":
            name = nri.Event.Name(nri.StateChangeEvent.FromString(request.payload).event)
        return answers.get(name, Response())

    return handle


def _refusal(code: Status, message: str) -> Response:
    return Response(code=code.value, message=message)


def _event(plugin: SamplePlugin, name: str) -> nri.StateChangeEvent:
    index = plugin.calls.index(name)
    return nri.StateChangeEvent.FromString(plugin.requests[index].payload)


def _environment(runtime_config: Any) -> list[str]:
    env: list[str] = runtime_config["process"]["env"]
    return env


async def test_life_of_a_container_is_told_in_containerds_order(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        assert await plugin.register() == Response()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()
        container = await node.run_container(pod)
        await node.stop(container)
        await node.remove(container)
        await node.remove_pod(pod)

        assert plugin.calls == [
            "Configure",
            "Synchronize",
            "RUN_POD_SANDBOX",
            "CreateContainer",
            "POST_CREATE_CONTAINER",
            "START_CONTAINER",
            "POST_START_CONTAINER",
            "StopContainer",
            "REMOVE_CONTAINER",
            "STOP_POD_SANDBOX",
            "REMOVE_POD_SANDBOX",
        ]
        configure = nri.ConfigureRequest.FromString(plugin.requests[0].payload)
        assert (configure.runtime_name, configure.runtime_version) == ("containerd", "2.1.9+unknown")
        assert (configure.registration_timeout, configure.request_timeout) == (500, 500)
        assert plugin.requests[1].payload == b""
        assert {request.timeout_nano for request in plugin.requests} == {500_000_000}


async def test_pid_and_state_are_those_of_the_step(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())
        pid = (await node.status(container)).pid
        await node.remove(container)

        created = _event(plugin, "POST_CREATE_CONTAINER").container
        start = _event(plugin, "START_CONTAINER").container
        started = _event(plugin, "POST_START_CONTAINER").container
        stop = nri.StopContainerRequest.FromString(plugin.requests[plugin.calls.index("StopContainer")].payload).container
        removed = _event(plugin, "REMOVE_CONTAINER").container
        assert (created.state, created.pid) == (nri.CONTAINER_CREATED, 0)
        assert (start.state, start.pid) == (nri.CONTAINER_CREATED, pid)
        assert (started.state, started.pid) == (nri.CONTAINER_RUNNING, pid)
        assert (stop.state, stop.pid) == (nri.CONTAINER_RUNNING, pid)
        assert (removed.state, removed.pid) == (nri.CONTAINER_STOPPED, 0)


async def test_only_subscribed_events_come(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())
        await node.remove(container)

        assert plugin.calls[2:] == ["CreateContainer", "START_CONTAINER", "StopContainer", "REMOVE_CONTAINER"]


async def test_adjustment_replaces_a_mount_and_wins_over_every_other_variable(
    node: StandInRuntime, socket: Path, folder: Path
) -> None:
    (folder / "config").mkdir()
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.test/claim",
        "devices": [
            {
                "name": "one",
                "containerEdits": {
                    "env": ["A=cdi"],
                    "mounts": [{"hostPath": f"{folder}/never", "containerPath": "/etc/app/config", "options": ["ro", "bind"]}],
                },
            }
        ],
    }
    (folder / "cdi/claim.json").write_text(json.dumps(spec))
    mount = nri.Mount(destination="/etc/app/config", type="bind", source=f"{folder}/config", options=["ro", "bind"])
    answer = adjustment(
        mounts=[mount],
        env=[nri.KeyValue(key="A", value="plugin"), nri.KeyValue(key="B", value="1"), nri.KeyValue(key="-GONE")],
        annotations={"seen": "yes"},
    )
    async with SamplePlugin(socket, _on(CreateContainer=answer), events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.run_container(
            await node.run_pod(), ContainerSpec(cdi_devices=("vendor.test/claim=one",), env={"A": "user", "GONE": "1"})
        )

        asked = nri.CreateContainerRequest.FromString(plugin.requests[2].payload).container
        assert [entry for entry in asked.env if entry[:2] == "A="] == ["A=cdi"]
        assert [one.source for one in asked.mounts if one.destination == "/etc/app/config"] == [f"{folder}/never"]
        config = (await node.status(container)).oci_spec
        assert [entry for entry in _environment(config) if entry.partition("=")[0] in "A B GONE"] == ["A=plugin", "B=1"]
        assert config["annotations"]["seen"] == "yes"
        shown = _event(plugin, "START_CONTAINER").container
        assert [one.source for one in shown.mounts if one.destination == "/etc/app/config"] == [f"{folder}/config"]
        # All mounts by depth, those of one depth by destination.
        assert [one.destination for one in shown.mounts] == [
            "/dev",
            "/proc",
            "/sys",
            "/dev/mqueue",
            "/dev/pts",
            "/dev/shm",
            "/dev/termination-log",
            "/etc/hostname",
            "/etc/hosts",
            "/etc/resolv.conf",
            "/etc/app/config",
            "/sys/fs/cgroup",
        ]


async def test_refused_create_fails_closed_and_is_undone(node: StandInRuntime, socket: Path) -> None:
    refusal = _refusal(Status.FAILED_PRECONDITION, "request gpu is held")
    async with SamplePlugin(socket, _on(CreateContainer=refusal), events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()

        with pytest.raises(RuntimeRefused) as refused:
            await node.create_container(pod)

        assert refused.value.code is Status.FAILED_PRECONDITION
        assert refused.value.text == (
            "failed to create containerd container: failed to get NRI adjustment for container: rpc error: "
            "code = FailedPrecondition desc = request gpu is held"
        )
        assert plugin.calls[2:] == ["CreateContainer", "StopContainer", "REMOVE_CONTAINER"]
        asked = nri.CreateContainerRequest.FromString(plugin.requests[2].payload).container
        removed = _event(plugin, "REMOVE_CONTAINER").container
        assert removed.id == asked.id
        assert (removed.state, removed.pid, dict(removed.labels)) == (nri.CONTAINER_UNKNOWN, 0, {})
        assert await node.list() == ()
        assert node.nri.plugins == ("10-sample",)


async def test_refused_start_fails_closed_and_nothing_has_run(node: StandInRuntime, socket: Path, folder: Path) -> None:
    refusal = _refusal(Status.FAILED_PRECONDITION, "a volume lies there")
    async with SamplePlugin(socket, _on(START_CONTAINER=refusal), events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.create_container(
            await node.run_pod(), ContainerSpec(command=("/bin/sh", "-c", f"echo ran > {folder}/ran"))
        )

        with pytest.raises(RuntimeRefused) as refused:
            await node.start(container)

        assert refused.value.code is Status.FAILED_PRECONDITION
        text = "NRI container start failed: rpc error: code = FailedPrecondition desc = a volume lies there"
        assert refused.value.text == text
        assert not (folder / "ran").exists()
        assert plugin.calls[2:] == ["CreateContainer", "START_CONTAINER", "StopContainer"]
        stop = nri.StopContainerRequest.FromString(plugin.requests[4].payload).container
        assert (stop.state, stop.pid) == (nri.CONTAINER_CREATED, _event(plugin, "START_CONTAINER").container.pid)
        status = await node.status(container)
        assert (status.state, status.exit_code, status.reason) == (ContainerState.EXITED, 128, "StartError")
        await node.remove(container)
        assert plugin.calls[-1] == "REMOVE_CONTAINER"
        assert plugin.calls.count("StopContainer") == 1


async def test_late_plugin_is_closed_and_the_container_goes_on_unadjusted(node: StandInRuntime, socket: Path) -> None:
    async def late(request: Request) -> Response:
        if request.method == "CreateContainer":
            await asyncio.Event().wait()
        return Response()

    async with SamplePlugin(socket, late, events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        await plugin.until(lambda: plugin.is_closed)
        assert (await node.status(container)).state is ContainerState.CREATED
        assert node.nri.plugins == ()
        reason = "failed to handle CreateContainer request: context deadline exceeded"
        assert node.nri.log == [f"closing plugin 10-sample: {reason}"]


async def test_plugin_that_dies_in_a_request_lets_the_container_go_on(node: StandInRuntime, socket: Path) -> None:
    plugins: list[SamplePlugin] = []

    async def die(request: Request) -> Response:
        if request.method == "CreateContainer":
            plugins[0].die()
        return Response()

    async with SamplePlugin(socket, die, events=_OURS) as plugin:
        plugins.append(plugin)
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        assert (await node.status(container)).state is ContainerState.CREATED
        assert node.nri.plugins == ()


@pytest.mark.parametrize("envelope_bytes", [4096, 4097])
async def test_answer_in_one_mux_frame_may_have_4096_bytes_and_not_one_more(
    node: StandInRuntime, socket: Path, envelope_bytes: int
) -> None:
    plugins: list[SamplePlugin] = []

    async def answer_unsplit(request: Request) -> Response:
        if request.method != "CreateContainer":
            return Response()
        body = b""
        padding = envelope_bytes
        while len(body) + 10 != envelope_bytes:
            padding -= 1
            adjust = adjustment(env=[nri.KeyValue(key="PADDING", value="x" * padding)])
            body = nri_frames.encode_response(adjust)
        message = struct.pack(">IIBB", len(body), 5, 2, 0) + body
        plugins[0].send_raw(struct.pack(">II", 1, len(message)) + message)
        await asyncio.Event().wait()
        return Response()

    async with SamplePlugin(socket, answer_unsplit, events=_OURS) as plugin:
        plugins.append(plugin)
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        config = (await node.status(container)).oci_spec
        adjusted = any(entry.startswith("PADDING=") for entry in _environment(config))
        assert adjusted is (envelope_bytes == 4096)
        assert node.nri.plugins == (("10-sample",) if adjusted else ())


async def test_large_answer_in_two_mux_frames_is_taken(node: StandInRuntime, socket: Path) -> None:
    answer = adjustment(env=[nri.KeyValue(key="BIG", value="x" * 20_000)])
    async with SamplePlugin(socket, _on(CreateContainer=answer), events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        assert f"BIG={'x' * 20_000}" in _environment((await node.status(container)).oci_spec)


_MOUNT = nri.Mount(destination="/etc/app", type="bind", source="/", options=["bind"])


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("mount", adjustment(mounts=[_MOUNT, _MOUNT])),
        ("env", adjustment(env=[nri.KeyValue(key="/etc/app"), nri.KeyValue(key="/etc/app")])),
    ],
)
async def test_same_thing_twice_in_one_answer_is_refused(node: StandInRuntime, socket: Path, kind: str, answer: Response) -> None:
    async with SamplePlugin(socket, _on(CreateContainer=answer), events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        with pytest.raises(RuntimeRefused) as refused:
            await node.create_container(await node.run_pod())

        assert refused.value.code is Status.UNKNOWN
        assert refused.value.text.endswith(
            f'failed to get NRI adjustment for container: plugins "10-sample" and "10-sample" both tried to set {kind} /etc/app'
        )
        assert plugin.calls[-2:] == ["StopContainer", "REMOVE_CONTAINER"]


async def test_two_plugins_are_called_by_index_and_may_not_set_the_same(node: StandInRuntime, socket: Path) -> None:
    answer = _on(CreateContainer=adjustment(env=[nri.KeyValue(key="SAME", value="1")]))
    async with (
        SamplePlugin(socket, answer, index="90", name="bb") as second,
        SamplePlugin(socket, answer, index="05", name="aa") as first,
    ):
        await second.register()
        await first.register()
        await node.nri.until_plugins(2)
        assert node.nri.plugins == ("05-aa", "90-bb")

        with pytest.raises(RuntimeRefused, match='plugins "90-bb" and "05-aa" both tried to set env SAME'):
            await node.create_container(await node.run_pod())


async def test_answer_that_is_no_message_fails_closed(node: StandInRuntime, socket: Path) -> None:
    garbage = _on(CreateContainer=Response(payload=b"\xff\xff\xff"))
    async with SamplePlugin(socket, garbage, events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        with pytest.raises(RuntimeRefused, match="proto: cannot parse invalid wire-format data"):
            await node.create_container(await node.run_pod())


async def test_errors_of_other_events_are_forgotten(node: StandInRuntime, socket: Path) -> None:
    refusal = _refusal(Status.INTERNAL, "no")
    names = ("POST_CREATE_CONTAINER", "POST_START_CONTAINER", "StopContainer", "REMOVE_CONTAINER", "STOP_POD_SANDBOX")
    async with SamplePlugin(socket, _on(**dict.fromkeys(names, refusal)), events=ALL_EVENTS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()

        await node.remove(await node.run_container(pod))
        await node.remove_pod(pod)

        assert plugin.calls[-1] == "REMOVE_POD_SANDBOX"


async def test_refused_pod_is_not_there(node: StandInRuntime, socket: Path) -> None:
    refusal = _refusal(Status.FAILED_PRECONDITION, "no pods")
    async with SamplePlugin(socket, _on(RUN_POD_SANDBOX=refusal)) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        with pytest.raises(RuntimeRefused, match=r"NRI RunPodSandbox failed: rpc error: .* desc = no pods"):
            await node.run_pod()


async def test_synchronize_tells_of_created_and_running_containers_as_they_are(node: StandInRuntime, socket: Path) -> None:
    pod = await node.run_pod(PodSpec(uid=_UID, name="pod-7", namespace="team-b"))
    running = await node.run_container(pod, ContainerSpec(name="a", env={"A": "1"}))
    created = await node.create_container(pod, ContainerSpec(name="b"))
    ended = await node.run_container(pod, ContainerSpec(name="c"))
    await node.stop(ended)

    async with SamplePlugin(socket, events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        told = nri.SynchronizeRequest.FromString(plugin.requests[1].payload)
        assert [(one.id, one.name, one.namespace, one.uid) for one in told.pods] == [(pod.id, "pod-7", "team-b", _UID)]
        pid = (await node.status(running)).pid
        assert [(one.id, one.state, one.pid) for one in told.containers] == [
            (running, nri.CONTAINER_RUNNING, pid),
            (created, nri.CONTAINER_CREATED, 0),
        ]
        assert "A=1" in told.containers[0].env
        assert told.containers[0].linux.cgroups_path == f"/kubepods/besteffort/pod{_UID}/{running}"


async def test_create_waits_for_a_synchronize_under_way_and_is_adjusted(node: StandInRuntime, socket: Path) -> None:
    may_answer = asyncio.Event()
    adjusted = adjustment(env=[nri.KeyValue(key="ADJUSTED", value="1")])

    async def slow(request: Request) -> Response:
        if request.method == "Synchronize":
            await may_answer.wait()
        return adjusted if request.method == "CreateContainer" else Response()

    pod = await node.run_pod()
    async with SamplePlugin(socket, slow, events=_OURS) as plugin, asyncio.TaskGroup() as group:
        await plugin.register()
        await plugin.until(lambda: "Synchronize" in plugin.calls)
        creating = group.create_task(node.create_container(pod))
        may_answer.set()

        container = await creating

        assert "ADJUSTED=1" in _environment((await node.status(container)).oci_spec)


async def test_requests_are_serial_on_the_whole_node(node: StandInRuntime, socket: Path) -> None:
    under_way = 0
    most = 0

    async def count(request: Request) -> Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        return Response()

    async with SamplePlugin(socket, count) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(node.create_container(pod, ContainerSpec(attempt=number)))
                group.create_task(node.run_pod())

        assert plugin.calls.count("CreateContainer") == 4
        assert most == 1


async def test_plugin_that_never_registers_is_closed(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        await node.create_container(await node.run_pod())

        await plugin.until(lambda: plugin.is_closed)

        assert plugin.calls == []


@pytest.mark.parametrize("index", ["5", "005", "a1", ""])
async def test_index_that_is_not_two_digits_is_refused(node: StandInRuntime, socket: Path, index: str) -> None:
    async with SamplePlugin(socket, index=index) as plugin:
        answer = await plugin.register()

        assert answer.code == Status.UNKNOWN.value
        assert answer.message == f'invalid plugin index: invalid plugin index "{index}", must be 2 digits'


async def test_subscription_to_an_event_that_is_not_known_ends_the_connection(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=_OURS | 0x800) as plugin:
        await plugin.register()

        await plugin.until(lambda: plugin.is_closed)

        assert "Synchronize" not in plugin.calls


async def test_late_synchronize_closes_the_plugin(node: StandInRuntime, socket: Path) -> None:
    async def late(request: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    async with SamplePlugin(socket, late) as plugin:
        await plugin.register()

        await plugin.until(lambda: plugin.is_closed)

        assert node.nri.plugins == ()


async def test_late_synchronize_leaves_the_plugin_of_1_7_connected_and_never_called(
    make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]], socket: Path
) -> None:
    may_answer = asyncio.Event()

    async def late(request: Request) -> Response:
        await may_answer.wait()
        return Response()

    options = {"isolation": Isolation.PATHS_MAPPED, "timeouts": _TIMEOUTS}
    async with make_runtime(version="1.7.24", **options) as node, SamplePlugin(socket, late) as plugin:
        await plugin.register()
        await plugin.until(lambda: "Synchronize" in plugin.calls)
        # The pod waits for its turn, which comes when Synchronize is given up.
        await node.run_pod()

        assert plugin.calls == ["Configure", "Synchronize"]
        assert not plugin.is_closed
        assert node.nri.log == [
            "failed to synchronize plugin 10-sample: failed to handle Synchronize request: context deadline exceeded"
        ]
        configure = nri.ConfigureRequest.FromString(plugin.requests[0].payload)
        assert (configure.registration_timeout, configure.request_timeout) == (0, 0)
        assert configure.runtime_version.startswith("1.7.24")


@pytest.mark.parametrize(("version", "is_removed"), [("1.7.24", False), ("2.1.9", True)])
async def test_mount_marked_for_removal_goes_on_2_only(
    make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]], socket: Path, version: str, is_removed: bool
) -> None:
    answer = adjustment(mounts=[nri.Mount(destination="-/etc/hosts")])
    async with (
        make_runtime(version=version, isolation=Isolation.PATHS_MAPPED) as node,
        SamplePlugin(socket, _on(CreateContainer=answer), events=_OURS) as plugin,
    ):
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        mounts = (await node.status(container)).oci_spec["mounts"]
        assert ("/etc/hosts" not in [mount["destination"] for mount in mounts]) is is_removed


async def test_restart_closes_plugins_and_containers_live_on(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=_OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())

        await node.restart()

        await plugin.until(lambda: plugin.is_closed)
        assert (await node.status(container)).state is ContainerState.RUNNING
    async with SamplePlugin(socket, events=_OURS) as again:
        await again.register()
        await node.nri.until_plugins(1)
        told = nri.SynchronizeRequest.FromString(again.requests[1].payload)
        assert [one.id for one in told.containers] == [container]


async def test_socket_lies_in_a_folder_of_its_owner_only(node: StandInRuntime, socket: Path) -> None:
    assert socket.parent.stat().st_mode & 0o777 == 0o700
