"""Containers of the stand-in runtime: what is inside, what can be changed, how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status

from vgpu_testkit.pods import ContainerSpec, ContainerState, Device, Mount, Pod, PodSpec
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_refusals import RuntimeRefused

_TMPFS = ["rw", "nosuid", "nodev", "noexec", "size=2m", "nr_inodes=64", "mode=0777"]


def _write_cdi(folder: Path, **edits: Any) -> str:
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.test/claim", "devices": [{"name": "one", "containerEdits": edits}]}
    (folder / "cdi/claim.json").write_text(json.dumps(spec))
    return "vendor.test/claim=one"


async def test_container_sees_its_env_mounts_and_devices(isolated: StandInRuntime, folder: Path) -> None:
    (folder / "note").write_text("from the host\n")
    pod = await isolated.run_pod()

    container = await isolated.run_container(
        pod,
        ContainerSpec(
            env={"GREETING": "a = b"},
            mounts=(Mount("/mnt/host", folder, readonly=True),),
            devices=(Device("/dev/spare", "/dev/null"),),
        ),
    )

    assert await isolated.sh(container, 'echo "$GREETING"') == "a = b\n"
    assert await isolated.sh(container, "cat /mnt/host/note") == "from the host\n"
    assert await isolated.sh(container, "stat -c %F:%t:%T /dev/spare") == "character special file:1:3\n"
    refused = await isolated.exec(container, "/bin/touch", "/mnt/host/new")
    assert refused.exit_code == 1
    assert _is_refusal(refused.stderr, "/mnt/host/new", "Read-only file system")


# What util-linux says where busybox passes the kernel's word on.
_UTIL_LINUX = {"Operation not permitted": "must be superuser"}


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        ("echo x > /etc/app/limits", "Read-only file system"),
        ("rm /etc/app/limits", "Read-only file system"),
        ("umount /etc/app", "Operation not permitted"),
        ("mount -o remount,rw,bind /etc/app", "ermission denied"),
        ("mount -t tmpfs none /etc/app", "ermission denied"),
        ("mv /etc/app /etc/other", "Device or resource busy"),
    ],
)
async def test_root_in_the_container_cannot_change_a_read_only_mount(
    isolated: StandInRuntime, folder: Path, attempt: str, reason: str
) -> None:
    (folder / "source").mkdir()
    (folder / "source/limits").write_text("limits\n")
    device = _write_cdi(
        folder,
        mounts=[
            {
                "hostPath": str(folder / "source"),
                "containerPath": "/etc/app",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
    )
    container = await isolated.run_container(await isolated.run_pod(), ContainerSpec(cdi_devices=(device,)))

    result = await isolated.exec(container, "/bin/sh", "-c", attempt)

    assert result.exit_code != 0
    assert any(words in result.stderr for words in (reason, _UTIL_LINUX.get(reason, reason)))
    assert (folder / "source/limits").read_text() == "limits\n"
    assert await isolated.sh(container, "cat /etc/app/limits") == "limits\n"


async def test_user_of_the_container_is_the_one_asked_for(isolated: StandInRuntime) -> None:
    pod = await isolated.run_pod()

    container = await isolated.run_container(pod, ContainerSpec(run_as_user=1000, run_as_group=2000))

    assert await isolated.sh(container, "id -u; id -g") == "1000\n2000\n"


async def test_read_only_root_cannot_be_written(isolated: StandInRuntime) -> None:
    container = await isolated.run_container(await isolated.run_pod(), ContainerSpec(readonly_rootfs=True))

    result = await isolated.exec(container, "/bin/touch", "/new")

    assert _is_refusal(result.stderr, "/new", "Read-only file system")


async def test_tmpfs_has_its_options_and_is_fresh_in_each_container(isolated: StandInRuntime, folder: Path) -> None:
    device = _write_cdi(folder, mounts=[{"hostPath": "tmpfs", "containerPath": "/tmp/.lock", "type": "tmpfs", "options": _TMPFS}])
    pod = await isolated.run_pod()
    spec = ContainerSpec(cdi_devices=(device,), run_as_user=1000)
    first = await isolated.run_container(pod, spec)
    await isolated.sh(first, "echo mine > /tmp/.lock/a")

    second = await isolated.run_container(pod, ContainerSpec(cdi_devices=(device,), attempt=1))

    assert await isolated.sh(second, "ls -A /tmp/.lock; stat -c %a /tmp/.lock") == "777\n"
    options = await isolated.sh(second, "grep ' /tmp/.lock ' /proc/self/mounts | cut -d' ' -f3,4")
    assert options.startswith("tmpfs rw,nosuid,nodev,noexec,relatime,size=2048k,nr_inodes=64,mode=777")


async def test_image_link_leads_a_mount_to_where_the_link_points(isolated: StandInRuntime, folder: Path) -> None:
    isolated.images.add("linked", links={"/opt/deep": "../etc/vgpu"}, files={"/opt/program": b"#!/bin/sh\necho works\n"})
    (folder / "evil").mkdir()

    container = await isolated.run_container(
        await isolated.run_pod(), ContainerSpec(image="linked", mounts=(Mount("/opt/deep/config", folder / "evil"),))
    )

    assert " /etc/vgpu/config " in await isolated.sh(container, "cat /proc/self/mountinfo")
    assert await isolated.sh(container, "/opt/program") == "works\n"


async def test_missing_source_lets_the_create_pass_and_fails_the_start(runtime: StandInRuntime, folder: Path) -> None:
    missing = f"{folder}/created-without-nri"
    device = _write_cdi(folder, mounts=[{"hostPath": missing, "containerPath": "/etc/app", "options": ["ro", "bind"]}])
    container = await runtime.create_container(await runtime.run_pod(), ContainerSpec(cdi_devices=(device,)))

    with pytest.raises(RuntimeRefused) as refusal:
        await runtime.start(container)

    expected = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable "
        f'to start container process: error during container init: error mounting "{missing}" to rootfs at "/etc/app": '
        f"stat {missing}: no such file or directory"
    )
    assert refusal.value.code is Status.UNKNOWN
    assert refusal.value.text == expected
    status = await runtime.status(container)
    assert (status.state, status.exit_code, status.reason) == (ContainerState.EXITED, 128, "StartError")
    assert status.message == expected


async def test_missing_source_fails_the_start_with_mapped_paths_too(mapped: StandInRuntime, folder: Path) -> None:
    missing = f"{folder}/created-without-nri"
    device = _write_cdi(folder, mounts=[{"hostPath": missing, "containerPath": "/etc/app", "options": ["ro", "bind"]}])
    container = await mapped.create_container(await mapped.run_pod(), ContainerSpec(cdi_devices=(device,)))

    with pytest.raises(RuntimeRefused) as refusal:
        await mapped.start(container)

    assert refusal.value.text.endswith(f'to rootfs at "/etc/app": stat {missing}: no such file or directory')
    assert (await mapped.status(container)).exit_code == 128


async def test_bind_mount_without_the_option_bind_is_no_device(isolated: StandInRuntime, folder: Path) -> None:
    device = _write_cdi(folder, mounts=[{"hostPath": str(folder), "containerPath": "/etc/app", "options": ["ro"]}])
    container = await isolated.create_container(await isolated.run_pod(), ContainerSpec(cdi_devices=(device,)))

    with pytest.raises(RuntimeRefused, match="no such device"):
        await isolated.start(container)


async def test_mount_point_that_a_read_only_parent_lacks_fails_the_start(isolated: StandInRuntime, folder: Path) -> None:
    (folder / "skeleton").mkdir()
    options = ["ro", "bind"]
    device = _write_cdi(
        folder,
        mounts=[
            {"hostPath": str(folder), "containerPath": "/etc/app/driver", "options": options},
            {"hostPath": str(folder / "skeleton"), "containerPath": "/etc/app", "options": options},
        ],
    )
    container = await isolated.create_container(await isolated.run_pod(), ContainerSpec(cdi_devices=(device,)))

    with pytest.raises(RuntimeRefused, match=r"mkdir .*/rootfs/etc/app/driver: read-only file system"):
        await isolated.start(container)


async def test_unknown_cdi_device_is_refused_and_leaves_nothing(runtime: StandInRuntime, folder: Path) -> None:
    pod = await runtime.run_pod()

    with pytest.raises(RuntimeRefused) as refusal:
        await runtime.create_container(pod, ContainerSpec(cdi_devices=("vendor.test/gpu=nope",)))

    assert refusal.value.code is Status.UNKNOWN
    assert refusal.value.text == (
        "failed to create containerd container: CDI device injection failed: unresolvable CDI devices vendor.test/gpu=nope"
    )
    assert await runtime.list() == ()
    assert list((folder / "runtime/containers").iterdir()) == []


async def test_program_that_is_not_there_fails_the_start(runtime: StandInRuntime) -> None:
    container = await runtime.create_container(await runtime.run_pod(), ContainerSpec(command=("nothing",)))

    with pytest.raises(RuntimeRefused, match=r'exec: "nothing": executable file not found in \$PATH'):
        await runtime.start(container)


async def test_exec_of_a_missing_program_is_refused_and_the_container_lives_on(isolated: StandInRuntime) -> None:
    container = await isolated.run_container(await isolated.run_pod())

    with pytest.raises(RuntimeRefused, match=r'exec: "nothing": executable file not found in \$PATH'):
        await isolated.exec(container, "nothing")

    assert await isolated.sh(container, "echo alive") == "alive\n"


async def test_exec_past_its_time_is_refused_and_killed(isolated: StandInRuntime) -> None:
    container = await isolated.run_container(await isolated.run_pod())

    with pytest.raises(RuntimeRefused) as refusal:
        await isolated.exec(container, "/bin/sleep", "1000", timeout_s=0)

    assert refusal.value.code is Status.DEADLINE_EXCEEDED
    assert "sleep 1000\n" not in await isolated.sh(container, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done")


async def test_container_that_ends_by_itself_keeps_its_exit_code_and_log(runtime: StandInRuntime) -> None:
    pod = await runtime.run_pod()
    spec = ContainerSpec(command=("/bin/sh", "-c", "echo said; exit 3"))
    container = await runtime.run_container(pod, spec)

    await runtime.ended(container)

    status = await runtime.status(container)
    assert (status.state, status.exit_code, status.pid) == (ContainerState.EXITED, 3, 0)
    assert runtime.log_of(pod, spec).endswith("stdout F said\n")
    with pytest.raises(RuntimeRefused, match="CONTAINER_EXITED"):
        await runtime.exec(container, "/bin/true")


async def test_same_name_and_attempt_twice_is_refused_until_the_first_is_removed(runtime: StandInRuntime) -> None:
    pod = await runtime.run_pod(PodSpec(name="web", uid="0b7e4a1c-2f63-4d0e-9b5a-000000000001"))
    first = await runtime.create_container(pod)

    with pytest.raises(RuntimeRefused, match=f'is reserved for "{first}"'):
        await runtime.create_container(pod)

    await runtime.create_container(pod, ContainerSpec(attempt=1))
    await runtime.remove(first)
    assert await runtime.create_container(pod) != first


async def test_pod_that_is_unknown_or_stopped_gets_no_container(runtime: StandInRuntime) -> None:
    with pytest.raises(RuntimeRefused, match="is not running"):
        await runtime.create_container(Pod(id="0" * 64, spec=PodSpec()))
    pod = await runtime.run_pod()
    await runtime.stop_pod(pod)

    with pytest.raises(RuntimeRefused, match="is not running"):
        await runtime.create_container(pod)


async def test_mapped_paths_show_the_container_its_files(mapped: StandInRuntime, folder: Path) -> None:
    (folder / "source").mkdir()
    (folder / "source/limits").write_text("limits\n")
    mounts = (Mount("/etc/app", folder / "source", readonly=True),)

    container = await mapped.run_container(await mapped.run_pod(), ContainerSpec(mounts=mounts, env={"A": "1"}))

    assert mapped.isolation == "paths mapped"
    assert (await mapped.exec(container, "/bin/cat", "/etc/app/limits")).stdout == "limits\n"
    assert await mapped.sh(container, 'cat /etc/app/limits; echo "$A"') == "limits\n1\n"


async def test_containers_end_with_the_runtime(make_runtime: Any) -> None:
    async with make_runtime() as runtime:
        container = await runtime.run_container(await runtime.run_pod())
        pid = (await runtime.status(container)).pid
        os.kill(pid, 0)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _is_refusal(said: str, path: str, reason: str) -> bool:
    """busybox and coreutils, whichever this machine has, word the rest differently."""
    return path in said and said.endswith(f": {reason}\n") and said.count("\n") == 1
