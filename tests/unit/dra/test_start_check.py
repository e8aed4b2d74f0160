"""What the mount table of a started container must show. The tables are those of runc, with the attack's line added."""

from __future__ import annotations

import pytest

from vgpu_dra.policy import start_check
from vgpu_dra.policy.start_check import Expected
from vgpu_state.container_abi import Mount, scratch_mounts
from vgpu_state.errors import PreconditionFailed
from vgpu_state.mountinfo import parse_mountinfo
from vgpu_testkit.dra_values import CDI_MOUNTS

WHO = "container train of pod research/two-workers-0"
CONFIG = "/etc/vgpu-manager/claims/3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11_train/config"

# Our own process: the root is an image, M is a mount of the host's disk.
OWN = parse_mountinfo("""\
900 800 0:99 / / rw - overlay overlay rw
901 900 8:1 /vol/etc/vgpu-manager /etc/vgpu-manager rw - ext4 /dev/sda1 rw
""")

TABLE = f"""\
1102 890 0:121 / / rw - overlay overlay rw
1103 1102 0:122 / /proc rw - proc proc rw
1104 1102 8:1 /vol/pods/data /data rw - ext4 /dev/sda1 rw
1108 1102 8:1 /vol/etc/vgpu-manager/skeleton /etc/vgpu-manager ro - ext4 /dev/sda1 rw
1109 1108 8:1 /vol{CONFIG} /etc/vgpu-manager/config ro - ext4 /dev/sda1 rw
1110 1108 8:1 /vol/etc/vgpu-manager/registry /etc/vgpu-manager/registry ro - ext4 /dev/sda1 rw
1113 1108 8:1 /vol/etc/vgpu-manager/libvgpu-control.so.v1.0.0 /etc/vgpu-manager/driver/libvgpu-control.so ro - ext4 x rw
1111 1102 8:1 /vol/etc/vgpu-manager/ld.so.preload /etc/ld.so.preload ro - ext4 /dev/sda1 rw
1112 1102 0:126 / /tmp/.vgpu_lock rw - tmpfs tmpfs rw
1114 1102 0:127 / /tmp/.vmem_node rw - tmpfs tmpfs rw
1115 1102 0:128 / /tmp/.sm_node rw - tmpfs tmpfs rw
"""

EXPECTED = [
    start_check.expect(mount, agent_path=mount.source, own_mounts=OWN)
    for mount in (
        *CDI_MOUNTS[:4],
        Mount(destination="/etc/vgpu-manager/config", source=CONFIG),
        *scratch_mounts(),
    )
]


def check(table: str) -> None:
    start_check.check_mount_table(parse_mountinfo(table), EXPECTED, who=WHO)


def refused(table: str) -> str:
    with pytest.raises(PreconditionFailed) as refusal:
        check(table)
    return str(refusal.value)


def without(destination: str) -> str:
    return "".join(line for line in TABLE.splitlines(keepends=True) if f" {destination} " not in line)


def test_expected_content_is_where_our_own_table_has_the_source() -> None:
    assert EXPECTED[0] == Expected(destination="/etc/vgpu-manager", content=("8:1", "/vol/etc/vgpu-manager/skeleton"))
    assert EXPECTED[4].content == ("8:1", f"/vol{CONFIG}")
    assert EXPECTED[5] == Expected(destination="/tmp/.vgpu_lock", content=None)


def test_source_that_is_a_mount_of_its_own_is_that_mounts_root() -> None:
    own = parse_mountinfo("1 0 0:9 / / rw - overlay o rw\n2 1 8:1 /vol/reg /etc/vgpu-manager/registry rw - ext4 x rw\n")

    assert start_check.content_of(own, "/etc/vgpu-manager/registry") == ("8:1", "/vol/reg")
    assert start_check.content_of(own, "/etc/vgpu-manager/skeleton") == ("0:9", "/etc/vgpu-manager/skeleton")


def test_table_with_our_mounts_on_top_passes() -> None:
    check(TABLE)


def test_volume_that_came_through_a_link_of_the_image_onto_our_limits_is_refused() -> None:
    table = TABLE + "1200 1109 8:1 /vol/pods/evil /etc/vgpu-manager/config rw - ext4 /dev/sda1 rw\n"

    assert refused(table) == (
        f"{WHO}: /etc/vgpu-manager/config does not show what we mounted there but ext4 8:1 /vol/pods/evil mounted at "
        "/etc/vgpu-manager/config: a link in the image or in a shared /tmp, or a volume mounted through one, leads elsewhere"
    )


def test_volume_over_the_parent_is_refused() -> None:
    table = TABLE + "1200 1102 8:1 /vol/pods/evil /etc rw - ext4 /dev/sda1 rw\n"

    assert "/etc/vgpu-manager does not show what we mounted there but ext4 8:1 /vol/pods/evil mounted at /etc:" in refused(table)


def test_another_partitions_limits_are_refused() -> None:
    other = CONFIG.replace("_train", "_serve")

    assert f"/etc/vgpu-manager/config does not show what we mounted there but ext4 8:1 /vol{other}" in refused(
        TABLE.replace(CONFIG, other)
    )


def test_same_path_of_another_file_system_is_refused() -> None:
    table = TABLE.replace(f"8:1 /vol{CONFIG}", f"8:2 /vol{CONFIG}")

    assert "/etc/vgpu-manager/config does not show what we mounted there but ext4 8:2" in refused(table)


def test_scratch_that_a_link_in_a_shared_tmp_led_elsewhere_is_refused() -> None:
    """runc follows the link and mounts our tmpfs at its target, which leaves the destination bare."""
    table = TABLE.replace(" / /tmp/.vgpu_lock ", " / /data/elsewhere ")

    assert refused(table) == (
        f"{WHO}: /tmp/.vgpu_lock does not show what we mounted there but overlay 0:121 / mounted at /: a link in the image or in "
        "a shared /tmp, or a volume mounted through one, leads elsewhere"
    )


def test_scratch_that_is_no_tmpfs_is_refused() -> None:
    table = TABLE.replace("0:127 / /tmp/.vmem_node rw - tmpfs tmpfs", "8:1 /vol/x /tmp/.vmem_node rw - ext4 /dev/sda1")

    assert "/tmp/.vmem_node does not show what we mounted there but ext4 8:1 /vol/x" in refused(table)


def test_scratch_that_is_a_folder_of_a_tmpfs_is_refused() -> None:
    table = TABLE.replace("0:128 / /tmp/.sm_node", "0:128 /shared /tmp/.sm_node")

    assert "/tmp/.sm_node does not show what we mounted there but tmpfs 0:128 /shared" in refused(table)


@pytest.mark.parametrize("destination", ["/etc/vgpu-manager/config", "/etc/ld.so.preload", "/tmp/.sm_node"])
def test_missing_mount_is_refused(destination: str) -> None:
    assert f"{destination} does not show what we mounted there but " in refused(without(destination))


def test_empty_table_is_refused() -> None:
    assert "/etc/vgpu-manager does not show what we mounted there but no mount at all" in refused("")


@pytest.mark.parametrize(
    ("parent", "path"),
    [
        (1108, "/etc/vgpu-manager/watcher"),
        (1109, "/etc/vgpu-manager/config/vgpu.config"),
        (1110, "/etc/vgpu-manager/registry/socket.sock"),
        (1112, "/tmp/.vgpu_lock/x"),
    ],
)
def test_further_mount_below_ours_is_refused(parent: int, path: str) -> None:
    table = TABLE + f"1200 {parent} 8:1 /vol/pods/evil {path} rw - ext4 /dev/sda1 rw\n"

    assert refused(table) == f"{WHO}: something else is mounted at {path}: ext4 8:1 /vol/pods/evil mounted at {path}"


def test_further_mount_that_ours_hides_is_no_matter() -> None:
    hidden = "1107 1102 8:1 /vol/pods/x /etc/vgpu-manager/watcher rw - ext4 /dev/sda1 rw\n"

    check(TABLE.replace("1108 1102", f"{hidden}1108 1102"))
