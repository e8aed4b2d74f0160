"""What the tests on containerd rest on: pods run as kubelet asks, and a rename in a mounted folder is seen inside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import image
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.cri import Cri
from vgpu_testkit.pods import ContainerSpec, ContainerState, Device, Mount, Pod, PodSpec, Seccomp


async def test_rename_in_the_mounted_directory_is_seen_inside(cri: Cri, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "pids.config").write_text("1\n")
    pod = await cri.run_pod()
    container = await cri.run_container(pod, ContainerSpec(mounts=(Mount("/config", config, readonly=True),)))
    assert await cri.sh(container, "cat /config/pids.config") == "1\n"

    replacement = tmp_path / "pids.config.new"
    replacement.write_text("1\n2\n")
    replacement.rename(config / "pids.config")

    assert await cri.sh(container, "cat /config/pids.config") == "1\n2\n"


async def test_open_file_keeps_its_content_when_another_is_renamed_over_it(cri: Cri, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "pids.config").write_text("old\n")
    script = "exec 3</config/pids.config; touch /flags/open; while [ ! -e /flags/renamed ]; do sleep 0.01; done; cat <&3"
    flags = tmp_path / "flags"
    flags.mkdir()
    pod = await cri.run_pod()
    container = await cri.run_container(
        pod,
        ContainerSpec(
            command=("/bin/sh", "-c", f"({script}) >/flags/seen; touch /flags/done; sleep 1000000"),
            mounts=(Mount("/config", config, readonly=True), Mount("/flags", flags)),
        ),
    )
    await cri.sh(container, "while [ ! -e /flags/open ]; do sleep 0.01; done")

    replacement = tmp_path / "pids.config.new"
    replacement.write_text("new\n")
    replacement.rename(config / "pids.config")
    (flags / "renamed").touch()

    await cri.sh(container, "while [ ! -e /flags/done ]; do sleep 0.01; done")
    assert (flags / "seen").read_text() == "old\n"
    assert await cri.sh(container, "cat /config/pids.config") == "new\n"


async def test_container_sees_its_env_mounts_and_devices(cri: Cri, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from the host\n")
    pod = await cri.run_pod()

    container = await cri.run_container(
        pod,
        ContainerSpec(
            env={"GREETING": "a = b"},
            mounts=(Mount("/mnt/host", tmp_path, readonly=True),),
            devices=(Device("/dev/spare", "/dev/null"),),
        ),
    )

    assert await cri.sh(container, 'echo "$GREETING"') == "a = b\n"
    assert await cri.sh(container, "cat /mnt/host/note") == "from the host\n"
    assert await cri.sh(container, "stat -c %F:%t:%T /dev/spare") == "character special file:1:3\n"
    refused = await cri.exec(container, "/bin/touch", "/mnt/host/new")
    assert refused.exit_code == 1
    assert refused.stderr == "touch: /mnt/host/new: Read-only file system\n"


async def test_cdi_device_brings_its_env_nodes_and_mounts(containerd: Containerd, cri: Cri, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from the spec\n")
    edits = {
        "env": ["VGPU_GRANT_0123456789abcdef=granted"],
        "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}],
        "mounts": [{"hostPath": str(tmp_path), "containerPath": "/mnt/cdi", "options": ["bind", "ro"]}],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "k8s.manager.nvidia.com/claim",
        "devices": [{"name": "slice-0", "containerEdits": edits}],
    }
    (containerd.cdi_dir / "claim.json.tmp").write_text(json.dumps(spec))
    (containerd.cdi_dir / "claim.json.tmp").rename(containerd.cdi_dir / "claim.json")
    pod = await cri.run_pod()

    container = await cri.run_container(pod, ContainerSpec(cdi_devices=("k8s.manager.nvidia.com/claim=slice-0",)))

    assert await cri.sh(container, "echo $VGPU_GRANT_0123456789abcdef") == "granted\n"
    assert await cri.sh(container, "stat -c %t:%T /dev/nvidia0") == "1:3\n"
    assert await cri.sh(container, "cat /mnt/cdi/note") == "from the spec\n"


async def test_unknown_cdi_device_is_refused_by_its_name(cri: Cri) -> None:
    pod = await cri.run_pod()

    with pytest.raises(GRPCError) as refusal:
        await cri.create_container(pod, ContainerSpec(cdi_devices=("k8s.manager.nvidia.com/claim=gone",)))

    assert "unresolvable CDI devices k8s.manager.nvidia.com/claim=gone" in str(refusal.value.message)


async def test_container_is_in_the_cgroup_of_its_pod(cri: Cri) -> None:
    pod = await cri.run_pod(PodSpec(uid="3f1c4b62-6a9e-4d1f-8f2f-0d1f0b5b7a11"))
    container = await cri.run_container(pod)

    pid = (await cri.status(container)).pid

    expected = f"/kubepods/besteffort/pod3f1c4b62-6a9e-4d1f-8f2f-0d1f0b5b7a11/{container}"
    assert pod.cgroup_of(container) == expected
    assert expected in _cgroups_of_process(pid)
    assert {path for path in _cgroups_of_process(pid) if "kubepods" in path} == {expected}


async def test_removed_pod_leaves_no_cgroup(cri: Cri) -> None:
    pod = await cri.run_pod()
    await cri.run_container(pod)

    await cri.remove_pod(pod)

    assert _cgroups_of_pod(pod) == []


async def test_container_runs_as_the_user_asked_for(cri: Cri) -> None:
    pod = await cri.run_pod()

    container = await cri.run_container(pod, ContainerSpec(run_as_user=1000, run_as_group=2000))

    assert await cri.sh(container, "id -u; id -g") == "1000\n2000\n"


async def test_root_file_system_is_read_only_where_asked(cri: Cri) -> None:
    pod = await cri.run_pod()

    container = await cri.run_container(pod, ContainerSpec(readonly_rootfs=True))

    refused = await cri.exec(container, "/bin/touch", "/new")
    assert refused.stderr == "touch: /new: Read-only file system\n"


@pytest.mark.parametrize(("seccomp", "mode"), [(Seccomp.RUNTIME_DEFAULT, "2"), (Seccomp.UNCONFINED, "0")])
async def test_seccomp_profile_is_the_one_asked_for(cri: Cri, seccomp: Seccomp, mode: str) -> None:
    pod = await cri.run_pod()

    container = await cri.run_container(pod, ContainerSpec(seccomp=seccomp))

    assert await cri.sh(container, "grep Seccomp: /proc/self/status") == f"Seccomp:\t{mode}\n"


async def test_capability_is_added_where_asked(cri: Cri, tmp_path: Path) -> None:
    pod = await cri.run_pod()

    plain = await cri.run_container(pod, ContainerSpec(name="plain"))
    admin = await cri.run_container(pod, ContainerSpec(name="admin", add_capabilities=("SYS_ADMIN",)))

    assert (await cri.exec(plain, "/bin/mount", "-t", "tmpfs", "none", "/tmp")).exit_code == 1
    assert (await cri.exec(admin, "/bin/mount", "-t", "tmpfs", "none", "/tmp")).exit_code == 0


async def test_privileged_container_may_write_to_sys(cri: Cri) -> None:
    pod = await cri.run_pod(PodSpec(privileged=True))

    container = await cri.run_container(pod, ContainerSpec(privileged=True))

    assert " rw," in await cri.sh(container, "grep ' /sys sysfs ' /proc/mounts")


async def test_image_has_the_files_and_links_it_was_given(containerd: Containerd, cri: Cri, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool ran\n")
    image.write_image(
        tmp_path / "image.tar",
        name="localhost/vgpu/with-link:1",
        files={"/opt/tool": tmp_path / "tool", "/etc/vgpu-manager/note": b"of the image\n"},
        links={"/srv/link": "/etc/vgpu-manager"},
    )
    containerd.import_image(tmp_path / "image.tar")
    pod = await cri.run_pod()

    container = await cri.run_container(pod, ContainerSpec(image="localhost/vgpu/with-link:1"))

    assert await cri.sh(container, "/opt/tool") == "tool ran\n"
    assert await cri.sh(container, "readlink /srv/link; cat /srv/link/note") == "/etc/vgpu-manager\nof the image\n"


async def test_container_that_ends_is_reported_with_its_exit_code(cri: Cri) -> None:
    pod = await cri.run_pod()
    container = await cri.run_container(pod, ContainerSpec(command=("/bin/sh", "-c", "sleep 1000000 & wait")))

    await cri.stop(container)

    status = await cri.status(container)
    assert (status.state, status.pid, status.exit_code) == (ContainerState.EXITED, 0, 137)


async def test_second_attempt_lives_beside_the_first(cri: Cri) -> None:
    pod = await cri.run_pod()
    first = await cri.run_container(pod, ContainerSpec(attempt=0))
    await cri.stop(first)

    second = await cri.run_container(pod, ContainerSpec(attempt=1))

    assert {(entry.id, entry.attempt, entry.state) for entry in await cri.list()} == {
        (first, 0, ContainerState.EXITED),
        (second, 1, ContainerState.RUNNING),
    }


async def test_container_outlives_the_kill_of_containerd(containerd: Containerd, cri: Cri) -> None:
    pod = await cri.run_pod()
    container = await cri.run_container(pod)
    pid = (await cri.status(container)).pid

    containerd.kill()
    assert _runs(pid)
    containerd.start()

    async with Cri(containerd.socket) as again:
        status = await again.status(container)
        assert (status.state, status.pid) == (ContainerState.RUNNING, pid)
        assert await again.sh(container, "echo alive") == "alive\n"


async def test_runtime_handler_must_be_configured(cri: Cri) -> None:
    nvidia = await cri.run_pod(PodSpec(name="known", runtime_handler="nvidia"))
    assert (await cri.run_container(nvidia)) != ""

    with pytest.raises(GRPCError) as refusal:
        await cri.run_pod(PodSpec(name="unknown", runtime_handler="elsewhere"))

    assert refusal.value.status is Status.UNKNOWN
    assert 'no runtime for "elsewhere" is configured' in str(refusal.value.message)


async def test_stopped_containerd_leaves_nothing(containerd_process: Containerd, tmp_path: Path) -> None:
    containerd_process.start()
    async with Cri(containerd_process.socket) as cri:
        pod = await cri.run_pod()
        pid = (await cri.status(await cri.run_container(pod))).pid

    containerd_process.kill()
    containerd_process.stop()

    assert not _runs(pid)
    assert _cgroups_of_pod(pod) == []
    assert _mounts_below(containerd_process.root) == []
    containerd_process.start()
    async with Cri(containerd_process.socket) as cri:
        await cri.wipe()


def _runs(pid: int) -> bool:
    """Whether the process still runs a program; one that has ended and was not yet waited for does not."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return False
    return True


def _cgroups_of_process(pid: int) -> set[str]:
    return {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


def _cgroups_of_pod(pod: Pod) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/pod{pod.spec.uid}"))


def _mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if f" {folder}/" in line]
