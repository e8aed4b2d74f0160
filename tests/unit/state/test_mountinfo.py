"""What a process finds at a path, by its mount table."""

from __future__ import annotations

import pytest

from vgpu_state import mountinfo
from vgpu_state.mountinfo import MountEntry

CLAIM = "/etc/vgpu-manager/claims/3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"

# The table of a container that containerd and runc started with the CDI edits and the NRI adjustment.
CONTAINER = f"""\
1102 890 0:121 / / rw,relatime master:375 - overlay overlay rw,lowerdir=/x,upperdir=/y,workdir=/z
1103 1102 0:122 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1104 1102 0:123 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1105 1104 0:124 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666
1106 1102 0:125 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
1107 1106 0:29 /kubepods/burstable/pod/c /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw
1108 1102 8:1 /etc/vgpu-manager/skeleton /etc/vgpu-manager ro,nosuid,nodev,relatime - ext4 /dev/sda1 rw
1109 1108 8:1 {CLAIM}/p/config /etc/vgpu-manager/config ro,nosuid,nodev,relatime - ext4 /dev/sda1 rw
1110 1108 8:1 /etc/vgpu-manager/registry /etc/vgpu-manager/registry ro,nosuid,nodev,relatime - ext4 /dev/sda1 rw
1111 1102 8:1 /etc/vgpu-manager/ld.so.preload /etc/ld.so.preload ro,nosuid,nodev,relatime - ext4 /dev/sda1 rw
1112 1102 0:126 / /tmp/.vgpu_lock rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,size=2048k,nr_inodes=64,mode=777
891 1103 0:122 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
"""


def seen(table: str, path: str) -> tuple[int, str, str] | None:
    mount = mountinfo.visible_mount(mountinfo.parse_mountinfo(table), path)
    return None if mount is None else (mount.mount_id, mount.device, mount.root)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", (1102, "0:121", "/")),
        ("/bin/sh", (1102, "0:121", "/")),
        ("/etc/passwd", (1102, "0:121", "/")),
        ("/etc/vgpu-manager", (1108, "8:1", "/etc/vgpu-manager/skeleton")),
        ("/etc/vgpu-manager/watcher", (1108, "8:1", "/etc/vgpu-manager/skeleton")),
        ("/etc/vgpu-manager/config", (1109, "8:1", f"{CLAIM}/p/config")),
        ("/etc/vgpu-manager/config/vgpu.config", (1109, "8:1", f"{CLAIM}/p/config")),
        ("/etc/vgpu-manager/configuration", (1108, "8:1", "/etc/vgpu-manager/skeleton")),
        ("/etc/ld.so.preload", (1111, "8:1", "/etc/vgpu-manager/ld.so.preload")),
        ("/tmp/.vgpu_lock", (1112, "0:126", "/")),
        ("/sys/fs/cgroup/x", (1107, "0:29", "/kubepods/burstable/pod/c")),
        ("/proc/bus", (891, "0:122", "/bus")),
    ],
)
def test_path_in_a_container_shows_the_mount_on_top(path: str, expected: tuple[int, str, str]) -> None:
    assert seen(CONTAINER, path) == expected


def test_later_mount_on_the_same_place_hides_the_earlier() -> None:
    table = "1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 /one /a rw - ext4 d rw\n3 2 0:6 /two /a rw - ext4 d rw\n"

    assert seen(table, "/a") == (3, "0:6", "/two")
    assert seen(table, "/a/b") == (3, "0:6", "/two")


def test_mount_below_a_place_that_was_mounted_over_later_is_hidden() -> None:
    table = "1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 /one /a/b rw - ext4 d rw\n3 1 0:6 /two /a rw - ext4 d rw\n"

    assert seen(table, "/a/b") == (3, "0:6", "/two")


def test_mount_made_within_the_covering_mount_is_seen() -> None:
    table = (
        "1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 /one /a/b rw - ext4 d rw\n3 1 0:6 /two /a rw - ext4 d rw\n"
        "4 3 0:7 /three /a/b rw - ext4 d rw\n"
    )

    assert seen(table, "/a/b") == (4, "0:7", "/three")


def test_root_that_was_mounted_over_is_the_later_root() -> None:
    table = "1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 /new / rw - ext4 d rw\n3 1 0:6 / /a rw - ext4 d rw\n"

    assert seen(table, "/a") == (2, "0:5", "/new")


def test_table_without_a_root_shows_nothing() -> None:
    assert seen("", "/a") is None
    assert seen("2 1 0:5 / /a rw - ext4 d rw\n", "/a") is None


def test_octal_escapes_are_the_characters_they_stand_for() -> None:
    (entry,) = mountinfo.parse_mountinfo(r"7 1 0:5 /a\040b\134c /d\011e\012f rw - fuse.x src rw")

    assert entry == MountEntry(mount_id=7, parent_id=1, device="0:5", root="/a b\\c", mount_point="/d\te\nf", fs_type="fuse.x")


def test_optional_fields_may_be_many_or_none() -> None:
    table = "7 1 0:5 / /a rw shared:1 master:2 propagate_from:3 unbindable - tmpfs t rw\n8 1 0:5 / /b rw - xfs t rw\n"

    assert [e.fs_type for e in mountinfo.parse_mountinfo(table)] == ["tmpfs", "xfs"]


@pytest.mark.parametrize(
    "line", ["", "7", "7 1 0:5 / /a rw tmpfs t rw x y", "x 1 0:5 / /a rw - tmpfs t rw", "7 1 0:5 / /a rw a b c -"]
)
def test_line_that_is_none_is_left_out(line: str) -> None:
    assert mountinfo.parse_mountinfo(f"{line}\n8 1 0:5 / /b rw - xfs t rw") == (
        MountEntry(mount_id=8, parent_id=1, device="0:5", root="/", mount_point="/b", fs_type="xfs"),
    )


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_volume_whose_path_has_another_line_separator_is_not_overlooked(separator: str) -> None:
    """The kernel escapes space, tab, line feed and backslash only, and a subPath may hold any other character."""
    table = f"{CONTAINER}1200 1109 8:1 /volumes/a{separator}b /etc/vgpu-manager/config rw - ext4 /dev/sda1 rw\n"

    assert seen(table, "/etc/vgpu-manager/config") == (1200, "8:1", f"/volumes/a{separator}b")
