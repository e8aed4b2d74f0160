"""The plugin between a runtime and a dra-plugin, over real sockets: what each hook asks, answers and refuses."""

from __future__ import annotations

import asyncio
import time

import pytest

from vgpu_nri.config import Config
from vgpu_nri.ttrpc.envelope import Response
from vgpu_proto import nri, partitions
from vgpu_state import errors
from vgpu_testkit import nri_messages as messages
from vgpu_testkit.fake_partitions import Bug, FakePartitions
from vgpu_testkit.nri_messages import CLAIM, ID, NONCE, POD_UID
from vgpu_testkit.nri_runtime_end import PluginConnection, RuntimeEnd

pytestmark = pytest.mark.usefixtures("plugin")

_ADJUSTED = nri.CreateContainerResponse(
    adjust=nri.ContainerAdjustment(
        mounts=[
            nri.Mount(
                destination="/etc/vgpu-manager/config",
                source="/host/claims/partition/config",
                type="bind",
                options=["ro", "nosuid", "nodev", "bind"],
            )
        ],
        env=[nri.KeyValue(key="VGPU_POD_NAME", value="train-0")],
    )
)
_WHO = f"of claim {CLAIM} for container team-a/train-0/train"


@pytest.fixture
async def attached(runtime: RuntimeEnd, dra: FakePartitions) -> PluginConnection:
    connection = await runtime.accept()
    await connection.attach()
    return connection


@pytest.fixture
async def without_dra(runtime: RuntimeEnd) -> PluginConnection:
    connection = await runtime.accept()
    await connection.attach()
    return connection


async def test_plugin_registers_under_its_name_and_index(runtime: RuntimeEnd) -> None:
    connection = await runtime.accept()

    assert await connection.accept_registration() == nri.RegisterPluginRequest(plugin_name="manager.nvidia.com", plugin_idx="00")


async def test_created_container_gets_the_mounts_and_env_of_its_partition(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    answer = await attached.call("CreateContainer", messages.create())

    assert answer.code == 0
    assert nri.CreateContainerResponse.FromString(answer.payload) == _ADJUSTED


async def test_partition_is_asked_for_with_all_that_dra_plugin_must_judge(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    await attached.call("CreateContainer", messages.create())

    (request,) = dra.asked("EnsurePartition")
    assert 0 < request.session < before_ns
    assert request.container == partitions.Container(
        runtime_id=ID,
        name="train",
        pod=partitions.Pod(uid=POD_UID, namespace="team-a", name="train-0", runtime_handler="nvidia"),
        grants=[partitions.Grant(key="0123456789abcdef", value=f"{CLAIM}/gpu/{NONCE}")],
        mounts=[partitions.Mount(destination="/data", source="/srv/data", type="bind", options=["rbind", "rw"])],
        devices=[partitions.Device(path="/dev/nvidia0", type="c", major=195, minor=0)],
        cgroup_path=f"/kubepods/pod{POD_UID}/{ID}",
    )


async def test_foreign_container_lives_without_a_call_to_dra_plugin(attached: PluginConnection, dra: FakePartitions) -> None:
    foreign = messages.container(env=("A=b",), pid=5)
    await dra.wait_for("RenewSession")

    answers = [
        await attached.call("CreateContainer", messages.create(env=("A=b",))),
        await attached.call("StartContainer", messages.start(env=("A=b",))),
        await attached.call("StopContainer", messages.stop()),
        await attached.call("RemoveContainer", messages.remove()),
        await attached.call("StateChange", messages.state_change(nri.START_CONTAINER, foreign)),
        await attached.call("StateChange", messages.state_change(nri.REMOVE_CONTAINER, foreign)),
    ]

    assert answers == [Response()] * 6
    assert {name for name, _ in dra.calls} == {"Synchronize", "RenewSession"}


async def test_foreign_containers_are_created_while_dra_plugin_is_away(without_dra: PluginConnection) -> None:
    assert await without_dra.call("CreateContainer", messages.create(env=())) == Response()


async def test_away_dra_plugin_is_an_error_reply_at_once(without_dra: PluginConnection, config: Config) -> None:
    begun = time.monotonic()
    answer = await without_dra.call("CreateContainer", messages.create())

    assert time.monotonic() - begun < 0.5
    assert answer.code == 14
    assert answer.payload == b""
    assert answer.message.startswith(f"EnsurePartition {_WHO}: dra-plugin is away")
    assert str(config.partitions_socket) in answer.message


async def test_hung_dra_plugin_is_an_error_reply_at_half_the_timeout(attached: PluginConnection, dra: FakePartitions) -> None:
    dra.hung["EnsurePartition"] = asyncio.Event()

    begun = time.monotonic()
    answer = await attached.call("CreateContainer", messages.create(), timeout_ns=1_000_000_000)

    assert 0.5 <= time.monotonic() - begun < 1.0
    assert answer.code == 14
    assert answer.message.startswith(f"EnsurePartition {_WHO}: dra-plugin did not answer within 0.5 s")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.MalformedInput("pod uid is 'x'"), 3),
        (errors.PermissionRefused("no such grant"), 7),
        (errors.PreconditionFailed("request gpu is held by container b"), 9),
        (errors.Superseded("the id was released"), 10),
        (errors.NotReady("waiting for the writer lock"), 14),
        (Bug("disk full"), 13),
    ],
)
async def test_refusal_reaches_the_runtime_with_code_claim_and_container(
    attached: PluginConnection, dra: FakePartitions, fault: errors.VgpuError, code: int
) -> None:
    dra.faults["EnsurePartition"] = fault

    answer = await attached.call("CreateContainer", messages.create())

    assert answer == Response(code=code, message=f"EnsurePartition {_WHO}: {fault}")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("VGPU_GRANT_0123456789abcdef=", "claim uid is ''"),
        (f"VGPU_GRANT_0123456789abcdef={CLAIM}/gpu", "request name is ''"),
        (f"VGPU_GRANT_0123456789abcdef={CLAIM}/../{NONCE}", "request name is '..'"),
        (f"VGPU_GRANT_0123456789abcdef={CLAIM}/gpu/short", "grant nonce of 5 characters"),
        (f"VGPU_GRANT_x={CLAIM}/gpu/{NONCE}", "grant key is 'x'"),
    ],
)
async def test_malformed_grant_is_refused_by_name_without_a_call(
    attached: PluginConnection, dra: FakePartitions, entry: str, reason: str
) -> None:
    answer = await attached.call("CreateContainer", messages.create(env=(entry,)))

    assert answer.code == 3
    assert "for container team-a/train-0/train" in answer.message
    assert reason in answer.message
    assert dra.asked("EnsurePartition") == []


async def test_no_message_or_page_shows_a_nonce(
    attached: PluginConnection, dra: FakePartitions, capsys: pytest.CaptureFixture[str]
) -> None:
    dra.faults["EnsurePartition"] = errors.PermissionRefused("no such grant")

    answer = await attached.call("CreateContainer", messages.create())

    assert NONCE not in answer.message
    assert NONCE not in capsys.readouterr().out


async def test_malformed_request_is_refused_and_the_connection_lives(attached: PluginConnection, dra: FakePartitions) -> None:
    answer = await attached.call("CreateContainer", b"\x12\xff\xff")

    assert answer == Response(code=3, message="CreateContainer: CreateContainerRequest of 3 bytes is malformed")
    assert (await attached.call("CreateContainer", messages.create())).code == 0


async def test_undecodable_envelope_is_refused_and_the_connection_lives(attached: PluginConnection, dra: FakePartitions) -> None:
    attached.send_bytes(b"\0\0\0\x01\0\0\0\x0c" + b"\0\0\0\x02\0\0\x01\x01\x01\x00\x0a\x05")

    answer = await attached.call("CreateContainer", messages.create())

    # Its stream, 257, makes ours an old one: an error, where a dropped connection would let the container in.
    assert answer.code == 3


@pytest.mark.parametrize("service", ["nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime"])
@pytest.mark.parametrize("method", ["UpdatePodSandbox", "ValidateContainerAdjustment", "UpdateContainer", "Nonsense"])
async def test_unknown_methods_are_unimplemented(attached: PluginConnection, service: str, method: str) -> None:
    answer = await attached.call(method, b"", service=service)

    assert answer == Response(code=12, message=f"unknown method {service}/{method}")


@pytest.mark.parametrize(
    "method",
    [
        "RunPodSandbox",
        "PostUpdatePodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "PostUpdateContainer",
        "RemoveContainer",
    ],
)
async def test_each_dedicated_method_of_nri_0_12_is_implemented(attached: PluginConnection, method: str) -> None:
    assert await attached.call(method, messages.start(env=())) == Response()


async def test_start_is_recorded_with_its_pid(attached: PluginConnection, dra: FakePartitions) -> None:
    await attached.call("CreateContainer", messages.create())

    answer = await attached.call("StartContainer", messages.start(pid=4711))

    assert answer == Response()
    assert dra.asked("RecordStart") == [partitions.RecordStartRequest(runtime_id=ID, pid=4711)]


async def test_start_told_by_state_change_is_recorded_too(attached: PluginConnection, dra: FakePartitions) -> None:
    answer = await attached.call("StateChange", messages.state_change(nri.START_CONTAINER, messages.container(pid=4711)))

    assert answer == Response()
    (asked,) = dra.asked("RecordStart")
    assert (asked.runtime_id, asked.pid) == (ID, 4711)


async def test_start_of_a_container_that_was_created_through_us_is_told_by_its_id_alone(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    await attached.call("CreateContainer", messages.create())

    await attached.call("StartContainer", messages.start(ID))

    (asked,) = dra.asked("RecordStart")
    assert (asked.session, asked.HasField("container")) == (0, False)


async def test_start_of_another_container_tells_dra_plugin_all_of_it(attached: PluginConnection, dra: FakePartitions) -> None:
    """It may have been created while we were away, on a partition that was there before it."""
    await attached.call("StartContainer", messages.start("b" * 64))

    (asked,) = dra.asked("RecordStart")
    assert asked.session > 0
    assert (asked.container.runtime_id, asked.container.name, asked.container.pid) == ("b" * 64, "train", asked.pid)
    assert [g.key for g in asked.container.grants] == ["0123456789abcdef"]


async def test_start_is_stopped_by_what_dra_plugin_finds(attached: PluginConnection, dra: FakePartitions) -> None:
    dra.faults["RecordStart"] = errors.PermissionRefused("a link stands at /tmp/.vgpu_lock")

    answer = await attached.call("StateChange", messages.state_change(nri.START_CONTAINER, messages.container(pid=4711)))

    assert answer == Response(code=7, message=f"RecordStart {_WHO}: a link stands at /tmp/.vgpu_lock")


async def test_start_of_a_container_created_without_us_is_left_to_dra_plugin(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    dra.faults["RecordStart"] = errors.PreconditionFailed("container has no binding")

    answer = await attached.call("StartContainer", messages.start("b" * 64))

    assert answer == Response(code=9, message=f"RecordStart {_WHO}: container has no binding")


async def test_start_is_refused_while_dra_plugin_is_away(without_dra: PluginConnection) -> None:
    assert (await without_dra.call("StartContainer", messages.start())).code == 14


async def test_stop_and_removal_release_by_runtime_id_without_env(attached: PluginConnection, dra: FakePartitions) -> None:
    await attached.call("CreateContainer", messages.create())

    assert await attached.call("StopContainer", messages.stop()) == Response()
    assert await attached.call("StateChange", messages.state_change(nri.REMOVE_CONTAINER, nri.Container(id=ID))) == Response()

    assert dra.asked("ReleasePartition") == [
        partitions.ReleasePartitionRequest(runtime_id=ID, stage=partitions.ReleasePartitionRequest.STOPPED),
        partitions.ReleasePartitionRequest(runtime_id=ID, stage=partitions.ReleasePartitionRequest.REMOVED),
    ]


async def test_stop_of_a_container_unknown_to_us_is_told_by_its_env(attached: PluginConnection, dra: FakePartitions) -> None:
    await attached.call("StopContainer", nri.StopContainerRequest(container=messages.container("c" * 64)))

    assert dra.asked("ReleasePartition") == [
        partitions.ReleasePartitionRequest(runtime_id="c" * 64, stage=partitions.ReleasePartitionRequest.STOPPED)
    ]


async def test_undo_of_a_refused_create_is_passed_on(attached: PluginConnection, dra: FakePartitions) -> None:
    dra.faults["EnsurePartition"] = errors.PreconditionFailed("held")
    await attached.call("CreateContainer", messages.create())

    await attached.call("StopContainer", messages.stop())
    await attached.call("RemoveContainer", messages.remove())
    await attached.call("RemoveContainer", messages.remove())

    assert [request.stage for request in dra.asked("ReleasePartition")] == [1, 2]


async def test_release_is_answered_before_the_next_create_is_asked_for(attached: PluginConnection, dra: FakePartitions) -> None:
    await attached.call("CreateContainer", messages.create())
    await attached.call("StopContainer", messages.stop())
    await attached.call("CreateContainer", messages.create("b" * 64))

    order = [name for name, _ in dra.calls if name not in ("Synchronize", "RenewSession")]
    assert order == ["EnsurePartition", "ReleasePartition", "EnsurePartition"]


async def test_failed_release_is_no_error_to_the_runtime_and_is_said_again(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    await attached.call("CreateContainer", messages.create())
    dra.faults["ReleasePartition"] = errors.NotReady("draining")

    answer = await attached.call("StopContainer", messages.stop())
    await dra.wait_for("ReleasePartition", 2)
    del dra.faults["ReleasePartition"]
    again = await dra.wait_for("ReleasePartition", len(dra.asked("ReleasePartition")) + 1)

    assert answer == Response()
    assert again[-1] == partitions.ReleasePartitionRequest(runtime_id=ID, stage=partitions.ReleasePartitionRequest.STOPPED)


async def test_hung_release_does_not_hold_the_runtime_beyond_the_deadline(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    await attached.call("CreateContainer", messages.create())
    dra.hung["ReleasePartition"] = asyncio.Event()

    begun = time.monotonic()
    answer = await attached.call("StopContainer", messages.stop(), timeout_ns=1_000_000_000)

    assert answer == Response()
    assert 0.5 <= time.monotonic() - begun < 1.0


async def test_hung_call_holds_up_no_other_container(attached: PluginConnection, dra: FakePartitions) -> None:
    dra.hung["EnsurePartition"] = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(attached.call("CreateContainer", messages.create()))
        await dra.wait_for("EnsurePartition")
        assert await attached.call("CreateContainer", messages.create("f" * 64, env=())) == Response()
        assert not slow.done()
        dra.hung["EnsurePartition"].set()

    assert slow.result().code == 0


async def test_long_adjustment_is_split_as_go_needs(attached: PluginConnection, dra: FakePartitions) -> None:
    dra.config_dir = "/host/" + "x" * 8000

    answer = await attached.call("CreateContainer", messages.create())

    (mount,) = nri.CreateContainerResponse.FromString(answer.payload).adjust.mounts
    assert mount.source == dra.config_dir


async def test_hook_before_configure_is_refused(runtime: RuntimeEnd, dra: FakePartitions) -> None:
    connection = await runtime.accept()
    await connection.requests.get()

    answer = await connection.call("CreateContainer", messages.create())

    assert answer == Response(code=9, message="CreateContainer: a hook in state registered")


async def test_each_hook_has_an_op_id_of_its_own_at_dra_plugin(attached: PluginConnection, dra: FakePartitions) -> None:
    await attached.call("CreateContainer", messages.create())
    await attached.call("CreateContainer", messages.create("b" * 64))

    first, second = dra.op_ids["EnsurePartition"]
    assert len(first) == len(second) == 8
    assert first != second


async def test_privileged_container_is_shown_as_one(attached: PluginConnection, dra: FakePartitions) -> None:
    request = messages.create()
    request.container.linux.resources.devices.add(allow=True, access="rwm")

    await attached.call("CreateContainer", request)

    assert dra.asked("EnsurePartition")[0].container.allows_all_devices


async def test_answer_of_dra_plugin_that_cannot_be_read_refuses_the_container(
    attached: PluginConnection, dra: FakePartitions
) -> None:
    dra.garbled.add("EnsurePartition")

    answer = await attached.call("CreateContainer", messages.create())

    assert answer == Response(code=13, message=f"EnsurePartition {_WHO}: dra-plugin's answer to EnsurePartition cannot be read")
