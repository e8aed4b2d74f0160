"""A container can change nothing of what binds it: not as root with the usual capabilities, not as another user.

What enforcement by preload is not (a copied loader, a user namespace of the container's own) is no matter of these tests.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from vgpu_testkit.manifests import GIB, Share
from vgpu_testkit.pods import ContainerSpec
from vgpu_testkit.vgpu_node import Slice, VgpuNode

_USERS: dict[str, dict[str, Any]] = {
    "root": {},
    "uid 1000": {"run_as_user": 1000, "run_as_group": 1000},
    "root with more capabilities": {
        "add_capabilities": (
            "DAC_OVERRIDE",
            "DAC_READ_SEARCH",
            "FOWNER",
            "NET_ADMIN",
            "SYS_PTRACE",
            "SYS_CHROOT",
            "LINUX_IMMUTABLE",
        )
    },
}
_CONFIG = "/etc/vgpu-manager/config"
_LIBRARY = "/etc/vgpu-manager/driver/libvgpu-control.so"
_REGISTRY = "/etc/vgpu-manager/registry"
_FILES = (f"{_CONFIG}/vgpu.config", f"{_CONFIG}/pids.config", "/etc/ld.so.preload", _LIBRARY, f"{_REGISTRY}/device-client")
_FOLDERS = (_CONFIG, _REGISTRY, "/etc/vgpu-manager/driver", "/etc/vgpu-manager")

# Each line is one attempt; none may change what the host, or another process of the container, reads.
_ON_A_FILE = """
echo forged > {path}
echo forged >> {path}
: > {path}
truncate -s 0 {path}
dd if=/dev/zero of={path} bs=1 count=8 conv=notrunc
sed -i s/./0/ {path}
chmod 0666 {path}
chown 1000 {path}
touch -d '2001-01-01' {path}
mv /tmp/forged {path}
cp -f /tmp/forged {path}
ln -f /tmp/forged {path}
ln -sf /tmp/forged {path}
rm -f {path}
mv {path} {path}.old
umount {path}
umount -l {path}
mount -o remount,rw {path}
mount -o remount,rw,bind {path}
mount --bind /tmp/forged {path}
"""
_ON_A_FOLDER = """
touch {path}/new
mkdir {path}/new
mv {path} {path}.old
mv /tmp/forged-folder {path}
rm -rf {path}
umount {path}
umount -l {path}
mount -o remount,rw {path}
mount -o remount,rw,bind {path}
mount --bind /tmp/forged-folder {path}
mount -t tmpfs none {path}
chmod 0777 {path}
mkdir -p /tmp/upper /tmp/work; mount -t overlay -o lowerdir={path},upperdir=/tmp/upper,workdir=/tmp/work none {path}
chroot / rm -rf {path}
"""


@pytest.mark.parametrize("user", _USERS)
async def test_nothing_inside_changes_what_binds_the_container(node: VgpuNode, user: str) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5", cores="30", memory="10Gi"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim, **_USERS[user]))
    await node.cri.sh(container, "echo forged > /tmp/forged; mkdir /tmp/forged-folder; touch /tmp/forged-folder/vgpu.config")
    on_host, inside = _on_host(node), await _inside(node, container)

    succeeded = []
    for template, places in ((_ON_A_FILE, _FILES), (_ON_A_FOLDER, _FOLDERS)):
        for place in places:
            attempts = [line.format(path=place) for line in template.strip().splitlines()]
            script = "\n".join(f"({line}) 2>/dev/null && echo '{number}'" for number, line in enumerate(attempts))
            done = await node.cri.exec(container, "/bin/sh", "-c", f"{script}\ntrue")
            succeeded += [attempts[int(number)] for number in done.stdout.split()]

    assert succeeded == []
    assert _on_host(node) == on_host
    assert await _inside(node, container) == inside
    assert await node.slices(container) == {5: Slice(memory_bytes=10 * GIB, cores_percent=30)}
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_the_same_attempts_succeed_on_what_is_the_containers_own(node: VgpuNode) -> None:
    """What the test above proves rests on this: its attempts are real ones."""
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, ContainerSpec(add_capabilities=("SYS_ADMIN",)))
    await node.cri.sh(container, "mkdir /own")

    failed = []
    for template, make in ((_ON_A_FILE, "echo own > /own/x"), (_ON_A_FOLDER, "mkdir -p /own/x")):
        for attempt in template.strip().splitlines():
            prepare = "mkdir -p /tmp/forged-folder; echo forged > /tmp/forged; umount -l /own/x; rm -rf /own/x /own/x.old"
            script = f"({prepare}; {make}) 2>/dev/null; {attempt.format(path='/own/x')}"
            if (await node.cri.exec(container, "/bin/sh", "-c", script)).exit_code != 0:
                failed.append(attempt)

    # There is nothing to unmount or to remount, and an overlay does not stand on another one of the kind the image is on.
    assert [attempt for attempt in failed if "mount" not in attempt] == []
    assert [attempt for attempt in failed if attempt.startswith(("mount --bind", "mount -t tmpfs"))] == []


async def test_registrys_socket_can_be_used_and_not_replaced(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim))
    before = os.stat(node.stack.node.manager_dir / "registry/socket.sock")

    attempts = ("rm -f {s}", "mv {s} {s}.old", "chmod 0600 {s}", "ln -sf /tmp/mine {s}", "touch -d '2001-01-01' {s}")
    exits = [
        (await node.cri.exec(container, "/bin/sh", "-c", attempt.format(s=f"{_REGISTRY}/socket.sock"))).exit_code != 0
        for attempt in attempts
    ]

    assert exits == [True] * 5
    after = os.stat(node.stack.node.manager_dir / "registry/socket.sock")
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_container_sees_nothing_of_other_claims(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    await node.prepare(Share(request="gpu", device="vgpu-2"), name="other")
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim))

    seen = await node.cri.sh(container, "cd /etc/vgpu-manager; find . | sort")
    assert seen.split() == [
        ".",
        "./.host_proc",
        "./config",
        "./config/pids.config",
        "./config/vgpu.config",
        "./driver",
        "./driver/libvgpu-control.so",
        "./registry",
        "./registry/device-client",
        "./registry/socket.sock",
        "./watcher",
    ]


def _on_host(node: VgpuNode) -> dict[str, tuple[int, int, int, bytes]]:
    """Inode, mode, mtime and bytes of everything below the manager directory; other containers' work is not going on."""
    seen = {}
    for path in sorted(node.stack.node.manager_dir.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        seen[str(path)] = (about.st_ino, about.st_mode, about.st_mtime_ns, content)
    return seen


async def _inside(node: VgpuNode, container: str) -> str:
    """Names, inodes and bytes as the container's programs find them."""
    script = f"ls -ldi {' '.join((*_FILES, *_FOLDERS))} && sha256sum {' '.join(_FILES)}"
    return await node.cri.sh(container, script)
