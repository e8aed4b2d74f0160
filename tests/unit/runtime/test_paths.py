"""How a container without namespaces finds its files, and what its image is made of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from vgpu_state import mountinfo
from vgpu_testkit import oci, runtime_init, runtime_paths
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_images import ImageNotFound, Images
from vgpu_testkit.runtime_paths import PathMap


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for name in ("bin", "etc"):
        (root / name).mkdir(parents=True)
    (root / "bin/cat").touch()
    return root


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("/etc/app", "/src/app"),
        ("/etc/app/x", "/src/app/x"),
        ("/etc/app/deep/x", "/src/deep/x"),
        ("/etc/apple", "/etc/apple"),
        ("--file=/etc/app/x", "--file=/src/app/x"),
        ("cat /etc/app/x; cat '/etc/app/deep'>/dev/null", "cat /src/app/x; cat '/src/deep'>/dev/null"),
        ("/mnt/etc/app/x", "/mnt/etc/app/x"),
        ("plain", "plain"),
    ],
)
def test_argument_is_mapped_by_the_deepest_mount_in_it(rootfs: Path, argument: str, expected: str) -> None:
    paths = PathMap(rootfs=rootfs, places=(("/etc/app/deep", "/src/deep"), ("/etc/app", "/src/app")))

    assert paths.map_argument(argument) == expected


def test_program_is_the_images(rootfs: Path) -> None:
    paths = PathMap(rootfs=rootfs, places=())

    assert paths.map_args(["cat", "/bin/cat", "/etc/none"], ["PATH=/sbin:/bin"]) == [
        f"{rootfs}/bin/cat",
        f"{rootfs}/bin/cat",
        "/etc/none",
    ]


def test_mount_table_stacks_mounts_as_the_kernel_does(rootfs: Path, tmp_path: Path) -> None:
    for name in ("lower", "upper"):
        (tmp_path / name).mkdir()
    mounts = [("/etc/app", "lower"), ("/etc/app", "upper"), ("/etc/app/tmp", None)]
    config: oci.Config = {
        "mounts": [
            {"destination": destination, "type": "bind", "source": f"{tmp_path}/{source}", "options": ["rbind"]}
            if source
            else {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": ["mode=0777"]}
            for destination, source in mounts
        ]
    }

    mapped = runtime_paths.map_container(config, rootfs=rootfs, scratch=tmp_path / "scratch")

    table = mountinfo.parse_mountinfo(mapped.mountinfo)
    host = mountinfo.parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    on_top = mountinfo.visible_mount(table, "/etc/app")
    under_it = mountinfo.visible_mount(host, str(tmp_path / "upper"))
    assert on_top is not None
    assert under_it is not None
    assert on_top.device == under_it.device
    assert on_top.root.endswith("/upper")
    scratch = mountinfo.visible_mount(table, "/etc/app/tmp")
    assert scratch is not None
    assert scratch.fs_type == "tmpfs"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/plain/new", "plain/new"),
        ("/absolute/x", "etc/x"),
        ("/relative/x", "etc/x"),
        ("/up/x", "etc/x"),
        ("/../../etc", "etc"),
        ("/chain", "etc"),
    ],
)
def test_links_of_the_image_never_lead_out_of_it(rootfs: Path, path: str, expected: str) -> None:
    for name, target in (("absolute", "/etc"), ("relative", "etc"), ("up", "../../../etc"), ("chain", "absolute")):
        (rootfs / name).symlink_to(target)

    assert runtime_init.resolve_in_root(str(rootfs), path) == f"{rootfs}/{expected}"


def test_endless_link_ends(rootfs: Path) -> None:
    (rootfs / "loop").symlink_to("loop")

    assert runtime_init.resolve_in_root(str(rootfs), "/loop/x") == f"{rootfs}/loop/x"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nvidia7", ("c", 195, 7)), ("nvidiactl", ("c", 195, 255)), ("nvidia-uvm-tools", ("c", 511, 1))],
)
def test_empty_file_stands_for_the_node_of_its_name(tmp_path: Path, name: str, expected: tuple[str, int, int]) -> None:
    (tmp_path / name).touch()

    assert oci.numbers_of_stand_in(str(tmp_path / name)) == expected
    with pytest.raises(oci.RefusedConfig, match="is not a device node"):
        oci.node_numbers(str(tmp_path / name))


def test_other_file_stands_for_no_node(tmp_path: Path) -> None:
    (tmp_path / "note").touch()

    with pytest.raises(oci.RefusedConfig, match="is not a device node"):
        oci.numbers_of_stand_in(str(tmp_path / "note"))
    assert oci.numbers_of_stand_in("/dev/null") == ("c", 1, 3)


def test_image_that_was_not_added_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFound, match='"nothing": not found'):
        Images().unpack("nothing", tmp_path / "rootfs")


async def test_machine_without_busybox_lends_its_own_programs(
    make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]], tmp_path: Path
) -> None:
    async with make_runtime(images=Images(busybox=tmp_path / "absent")) as runtime:
        container = await runtime.run_container(await runtime.run_pod())

        assert await runtime.sh(container, "echo lent | cat") == "lent\n"
