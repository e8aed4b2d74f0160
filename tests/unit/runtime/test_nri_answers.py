"""What the stand-in runtime makes of answers: adjustments, refusals and malformed ones."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Request, Response
from vgpu_testkit.pods import ContainerSpec, ContainerState
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_process import Isolation
from vgpu_testkit.runtime_refusals import RuntimeRefused
from vgpu_testkit.runtime_sample_plugin import OURS, SamplePlugin, adjustment, answering, refusal


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
    async with SamplePlugin(socket, answering(CreateContainer=answer), events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.run_container(
            await node.run_pod(), ContainerSpec(cdi_devices=("vendor.test/claim=one",), env={"A": "user", "GONE": "1"})
        )

        asked = nri.CreateContainerRequest.FromString(plugin.requests[2].payload).container
        assert [entry for entry in asked.env if entry[:2] == "A="] == ["A=cdi"]
        assert [one.source for one in asked.mounts if one.destination == "/etc/app/config"] == [f"{folder}/never"]
        config = (await node.status(container)).oci_spec
        assert [entry for entry in config["process"]["env"] if entry.partition("=")[0] in "A B GONE"] == ["A=plugin", "B=1"]
        assert config["annotations"]["seen"] == "yes"
        shown = plugin.event("START_CONTAINER").container
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


@pytest.mark.parametrize(("version", "is_removed"), [("1.7.24", False), ("2.1.9", True)])
async def test_mount_marked_for_removal_goes_on_2_only(
    make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]], socket: Path, version: str, is_removed: bool
) -> None:
    answer = adjustment(mounts=[nri.Mount(destination="-/etc/hosts")])
    async with (
        make_runtime(version=version, isolation=Isolation.PATHS_MAPPED) as node,
        SamplePlugin(socket, answering(CreateContainer=answer), events=OURS) as plugin,
    ):
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        mounts = (await node.status(container)).oci_spec["mounts"]
        assert ("/etc/hosts" not in [mount["destination"] for mount in mounts]) is is_removed


async def test_refused_create_fails_closed_and_is_undone(node: StandInRuntime, socket: Path) -> None:
    answer = refusal(Status.FAILED_PRECONDITION, "request gpu is held")
    async with SamplePlugin(socket, answering(CreateContainer=answer), events=OURS) as plugin:
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
        removed = plugin.event("REMOVE_CONTAINER").container
        assert removed.id == asked.id
        assert (removed.state, removed.pid, dict(removed.labels)) == (nri.CONTAINER_UNKNOWN, 0, {})
        assert await node.list() == ()
        assert node.nri.plugins == ("10-sample",)


async def test_refused_start_fails_closed_and_nothing_has_run(node: StandInRuntime, socket: Path, folder: Path) -> None:
    answer = refusal(Status.FAILED_PRECONDITION, "a volume lies there")
    async with SamplePlugin(socket, answering(START_CONTAINER=answer), events=OURS) as plugin:
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
        assert (stop.state, stop.pid) == (nri.CONTAINER_CREATED, plugin.event("START_CONTAINER").container.pid)
        status = await node.status(container)
        assert (status.state, status.exit_code, status.reason) == (ContainerState.EXITED, 128, "StartError")
        await node.remove(container)
        assert plugin.calls[-1] == "REMOVE_CONTAINER"
        assert plugin.calls.count("StopContainer") == 1


async def test_refused_pod_is_not_there(node: StandInRuntime, socket: Path) -> None:
    answer = refusal(Status.FAILED_PRECONDITION, "no pods")
    async with SamplePlugin(socket, answering(RUN_POD_SANDBOX=answer)) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        with pytest.raises(RuntimeRefused, match=r"NRI RunPodSandbox failed: rpc error: .* desc = no pods"):
            await node.run_pod()


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

    async with SamplePlugin(socket, answer_unsplit, events=OURS) as plugin:
        plugins.append(plugin)
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        config = (await node.status(container)).oci_spec
        adjusted = any(entry.startswith("PADDING=") for entry in config["process"]["env"])
        assert adjusted is (envelope_bytes == 4096)
        assert node.nri.plugins == (("10-sample",) if adjusted else ())


async def test_large_answer_in_two_mux_frames_is_taken(node: StandInRuntime, socket: Path) -> None:
    answer = adjustment(env=[nri.KeyValue(key="BIG", value="x" * 20_000)])
    async with SamplePlugin(socket, answering(CreateContainer=answer), events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        assert f"BIG={'x' * 20_000}" in (await node.status(container)).oci_spec["process"]["env"]


_MOUNT = nri.Mount(destination="/etc/app", type="bind", source="/", options=["bind"])


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("mount", adjustment(mounts=[_MOUNT, _MOUNT])),
        ("env", adjustment(env=[nri.KeyValue(key="/etc/app"), nri.KeyValue(key="/etc/app")])),
    ],
)
async def test_same_thing_twice_in_one_answer_is_refused(node: StandInRuntime, socket: Path, kind: str, answer: Response) -> None:
    async with SamplePlugin(socket, answering(CreateContainer=answer), events=OURS) as plugin:
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
    answer = answering(CreateContainer=adjustment(env=[nri.KeyValue(key="SAME", value="1")]))
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
    garbage = answering(CreateContainer=Response(payload=b"\xff\xff\xff"))
    async with SamplePlugin(socket, garbage, events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        with pytest.raises(RuntimeRefused, match="proto: cannot parse invalid wire-format data"):
            await node.create_container(await node.run_pod())
