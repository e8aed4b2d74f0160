"""What /proc and the cgroup file systems say, in each layout that a node may have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_daemon.procfs import ProcessIdentity, Procfs, boot_id
from vgpu_state.cgroup import AmbiguousCgroup, ContainerCgroup
from vgpu_state.ids import PodUid, RuntimeId
from vgpu_testkit import deep_cgroups
from vgpu_testkit.deep_cgroups import DeepCgroups

POD = PodUid("0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11")
OTHER_POD = PodUid("11111111-2222-4333-8444-555555555555")
ID = RuntimeId("9f3d6c0e4b6a41d2b7b0f5a1d2c3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b")
OTHER_ID = RuntimeId("b" * 64)
PATH = f"/kubepods/burstable/pod{POD}/{ID}"
SYSTEMD = (
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b9c2a3e_54f1_4c86_9b57_2f1d2b8f4c11.slice"
    f"/cri-containerd-{ID}.scope"
)
MANY_NAMES = "42 (a) b (c)) S 1 " + "0 " * 17 + "123456 0 0\n"


@pytest.fixture
def procfs(tmp_path: Path) -> Procfs:
    (tmp_path / "proc").mkdir()
    (tmp_path / "cgroup").mkdir()
    return Procfs(proc_root=tmp_path / "proc", cgroup_root=tmp_path / "cgroup")


@pytest.fixture
def deep() -> Iterator[DeepCgroups]:
    with deep_cgroups.made() as deep:
        yield deep


def cgroup(root: Path, path: str, *pids: int) -> Path:
    """A cgroup below `root` and each one above it, as the kernel has them."""
    directory = root / path.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)
    for above in (directory, *directory.parents):
        if above.is_relative_to(root):
            (above / "cgroup.procs").touch()
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


def proc_file(tmp_path: Path, pid: int, name: str, content: str) -> None:
    (tmp_path / "proc" / str(pid)).mkdir(exist_ok=True)
    (tmp_path / "proc" / str(pid) / name).write_bytes(content.encode())


# PIDs of a container


def test_pids_of_a_container_are_ascending_and_of_all_cgroups_below_it(procfs: Procfs, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    cgroup(root, PATH, 300, 7)
    cgroup(root, f"{PATH}/nested/deep", 50)
    cgroup(root, f"/kubepods/burstable/pod{POD}/{OTHER_ID}", 8)

    assert procfs.cgroup_pids(PATH, ID) == (7, 50, 300)


@pytest.mark.parametrize("hierarchy", ["memory", "pids", "devices", "cpu,cpuacct", "cpu", "systemd", "freezer"])
def test_pids_are_found_in_a_hierarchy_of_v1(procfs: Procfs, tmp_path: Path, hierarchy: str) -> None:
    cgroup(tmp_path / "cgroup" / hierarchy, PATH, 7)

    assert procfs.cgroup_pids(PATH, ID) == (7,)
    assert procfs.cgroup_pids("", ID) == (7,)


@pytest.mark.parametrize("path", [PATH, SYSTEMD])
@pytest.mark.parametrize("shown", ["", f"/../../pod{POD}/{ID}"], ids=["path not known", "relative to a namespace"])
def test_container_without_a_usable_path_is_found_by_its_id(procfs: Procfs, tmp_path: Path, path: str, shown: str) -> None:
    cgroup(tmp_path / "cgroup", path, 7)
    cgroup(tmp_path / "cgroup", f"/kubepods/burstable/pod{OTHER_POD}/{OTHER_ID}", 8)

    assert procfs.cgroup_pids(shown, ID) == (7,)


def test_cgroup_namespace_of_our_own_shows_the_pods_at_its_root(procfs: Procfs, tmp_path: Path) -> None:
    cgroup(tmp_path / "cgroup", f"/pod{POD}/{ID}", 7)

    assert procfs.cgroup_pids("", ID) == (7,)


def test_container_that_moved_is_looked_for_again(procfs: Procfs, tmp_path: Path) -> None:
    first = cgroup(tmp_path / "cgroup", PATH, 7)
    assert procfs.cgroup_pids("", ID) == (7,)

    (first / "cgroup.procs").unlink()
    first.rmdir()
    assert procfs.cgroup_pids("", ID) == ()
    cgroup(tmp_path / "cgroup", SYSTEMD, 9)
    assert procfs.cgroup_pids("", ID) == (9,)


@pytest.mark.parametrize(
    "fake",
    [
        f"/kubepods/aaa/pod{OTHER_POD}/{OTHER_ID}/{ID}",
        f"/kubepods/burstable/pod{OTHER_POD}/{OTHER_ID}/kubepods/pod{POD}/{ID}",
        f"/kubepods/burstable/pod{OTHER_POD}/{OTHER_ID}/cri-containerd-{ID}.scope",
        f"/kubepods/burstable/pod{POD}/x{ID}",
        f"/user.slice/user-1000.slice/kubepods/pod{POD}/{ID}",
        f"/system.slice/{ID}",
    ],
)
def test_cgroup_that_only_has_the_containers_name_is_not_the_containers(procfs: Procfs, tmp_path: Path, fake: str) -> None:
    cgroup(tmp_path / "cgroup", fake, 666)

    assert procfs.cgroup_pids("", ID) == ()


def test_cgroup_that_is_gone_or_empty_has_no_pids(procfs: Procfs, tmp_path: Path) -> None:
    assert procfs.cgroup_pids(PATH, ID) == ()
    assert procfs.cgroup_pids("", ID) == ()

    cgroup(tmp_path / "cgroup", PATH)
    assert procfs.cgroup_pids(PATH, ID) == ()


def test_process_of_no_visible_pid_namespace_is_no_pid(procfs: Procfs, tmp_path: Path) -> None:
    cgroup(tmp_path / "cgroup", PATH, 0, 0, 7)

    assert procfs.cgroup_pids(PATH, ID) == (7,)


# Cgroups that a container makes below its own


@pytest.mark.parametrize("nested", [1, 1500, 3000])
def test_processes_of_nested_cgroups_are_found_however_deep(
    procfs: Procfs, tmp_path: Path, deep: DeepCgroups, nested: int
) -> None:
    """3000 levels are deeper than a path may be long, than Python's stack, and than a process may have files open."""
    deep.below(cgroup(tmp_path / "cgroup", PATH), nested, pid=50)

    assert procfs.cgroup_pids(PATH, ID) == (50,)
    assert procfs.has_processes(PATH, ID)
    assert procfs.cgroup_pids("", ID) == (50,)


def test_more_cgroups_than_are_looked_at_may_hold_processes(procfs: Procfs, tmp_path: Path, deep: DeepCgroups) -> None:
    own = cgroup(tmp_path / "cgroup", PATH)
    deep.below(own, 9_999)
    assert not procfs.has_processes(PATH, ID)

    deep.below(cgroup(tmp_path / "cgroup", f"{PATH}/more"), 1, pid=50)
    assert procfs.has_processes(PATH, ID)


def test_cgroups_of_one_container_do_not_hide_another(procfs: Procfs, tmp_path: Path, deep: DeepCgroups) -> None:
    deep.below(cgroup(tmp_path / "cgroup", f"/kubepods/burstable/pod{POD}/{OTHER_ID}"), 10_000)
    assert not procfs.has_processes("", ID)

    cgroup(tmp_path / "cgroup", PATH, 7)
    assert procfs.cgroup_pids("", ID) == (7,)


@pytest.mark.parametrize(("populated", "pids"), [(1, ()), (0, (7,))])
def test_kernels_own_word_on_a_populated_cgroup_comes_first(
    procfs: Procfs, tmp_path: Path, populated: int, pids: tuple[int, ...]
) -> None:
    own = cgroup(tmp_path / "cgroup", PATH, *pids)
    (own / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    assert procfs.has_processes(PATH, ID) is bool(populated)


@pytest.mark.parametrize("pids", [(), (7,), (0,)], ids=["empty", "one", "one that is not visible here"])
def test_cgroup_of_v1_has_processes_when_any_is_listed(procfs: Procfs, tmp_path: Path, pids: tuple[int, ...]) -> None:
    assert not procfs.has_processes(PATH, ID)

    cgroup(tmp_path / "cgroup/memory", PATH, *pids)

    assert procfs.has_processes(PATH, ID) is bool(pids)
    assert procfs.has_processes("", ID) is bool(pids)


@pytest.mark.parametrize(
    "path",
    [
        PATH,
        SYSTEMD,
        f"/../../pod{POD}/{ID}",
        f"/kubepods/burstable/pod{POD}",
        f"/system.slice/kubepods-pod{POD.replace('-', '_')}.slice:cri-containerd:{ID}",
    ],
    ids=["cgroupfs", "systemd", "a cgroup namespace of ours", "in the pod's own level", "containers beside each other"],
)
def test_pod_has_processes_while_any_container_of_it_has(procfs: Procfs, tmp_path: Path, path: str) -> None:
    own = cgroup(tmp_path / "cgroup", path.replace("/..", ""), 41)
    cgroup(tmp_path / "cgroup", f"/kubepods/burstable/pod{OTHER_POD}/{OTHER_ID}", 42)

    assert procfs.pod_has_processes(POD)
    (own / "cgroup.procs").write_text("")
    assert not procfs.pod_has_processes(POD)
    assert procfs.pod_has_processes(OTHER_POD)


def test_pod_in_a_hierarchy_of_v1_has_processes(procfs: Procfs, tmp_path: Path) -> None:
    own = cgroup(tmp_path / "cgroup/memory", PATH, 41)

    assert procfs.pod_has_processes(POD)
    (own / "cgroup.procs").write_text("")
    assert not procfs.pod_has_processes(POD)


def test_cgroup_that_a_container_named_after_another_pod_is_not_that_pods(procfs: Procfs, tmp_path: Path) -> None:
    cgroup(tmp_path / "cgroup", f"{PATH}/kubepods/pod{OTHER_POD}/{OTHER_ID}", 41)

    assert not procfs.pod_has_processes(OTHER_POD)


def test_list_that_cannot_be_read_may_hold_processes(procfs: Procfs, tmp_path: Path) -> None:
    own = cgroup(tmp_path / "cgroup", f"{PATH}/below").parent
    (own / "below/cgroup.procs").unlink()
    (own / "below/cgroup.procs").mkdir()

    assert procfs.has_processes(PATH, ID)
    assert procfs.cgroup_pids(PATH, ID) == ()


# One process


def test_place_is_the_kernels_word(procfs: Procfs, tmp_path: Path) -> None:
    proc_file(tmp_path, 42, "cgroup", f"0::{PATH}\n")

    assert procfs.locate(42) == ContainerCgroup(pod_uid=POD, container_id=ID, path=PATH)
    assert procfs.locate(43) is None


def test_hierarchies_that_disagree_are_ambiguous(procfs: Procfs, tmp_path: Path) -> None:
    proc_file(tmp_path, 42, "cgroup", f"2:pids:{PATH}\n1:cpu:/kubepods/pod{OTHER_POD}/{OTHER_ID}\n")

    assert isinstance(procfs.locate(42), AmbiguousCgroup)


def test_carriage_return_in_a_name_ends_no_line(procfs: Procfs, tmp_path: Path) -> None:
    proc_file(tmp_path, 42, "cgroup", f"0::{PATH}/x\r0::/kubepods/pod{OTHER_POD}/{OTHER_ID}\n")
    proc_file(tmp_path, 42, "mountinfo", "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 /a\rb /c rw - ext4 x rw\n")

    assert procfs.locate(42) == ContainerCgroup(pod_uid=POD, container_id=ID, path=PATH)
    assert [m.root for m in procfs.mounts(42)] == ["/", "/a\rb"]


def test_identity_is_the_start_time_whatever_the_command_is_called(procfs: Procfs, tmp_path: Path) -> None:
    proc_file(tmp_path, 42, "stat", MANY_NAMES)

    assert procfs.identify(42) == ProcessIdentity(pid=42, started_ticks=123456)


@pytest.mark.parametrize("content", ["", "42", "42 (x) S 1"])
def test_process_that_is_gone_has_no_identity(procfs: Procfs, tmp_path: Path, content: str) -> None:
    proc_file(tmp_path, 42, "stat", content)

    assert procfs.identify(42) is None
    assert procfs.identify(43) is None


def test_mounts_of_a_process_that_is_gone_are_none(procfs: Procfs) -> None:
    assert procfs.mounts(43) == ()


def test_gpu_is_held_by_who_has_its_node_open(procfs: Procfs, tmp_path: Path) -> None:
    for pid, target in ((42, "/dev/nvidia0"), (43, "/dev/null")):
        fds = tmp_path / "proc" / str(pid) / "fd"
        fds.mkdir(parents=True)
        (fds / "3").symlink_to(target)
        (fds / "4").symlink_to("socket:[1]")

    assert [procfs.holds_gpu(pid) for pid in (42, 43, 44)] == [True, False, False]


@pytest.mark.parametrize(("sockets", "is_seen"), [(256, True), (257, False)])
def test_no_more_than_256_open_files_are_looked_at(procfs: Procfs, tmp_path: Path, sockets: int, is_seen: bool) -> None:
    fds = tmp_path / "proc/42/fd"
    fds.mkdir(parents=True)
    for number in range(sockets):
        (fds / str(number)).symlink_to("socket:[1]")
    last = os.listdir(fds)[-1]  # this file system's order need not be the kernel's, which is by number
    (fds / last).unlink()
    (fds / last).symlink_to("/dev/nvidia0")

    assert procfs.holds_gpu(42) is is_seen


# The real thing


def test_real_proc_knows_this_process(tmp_path: Path) -> None:
    real = Procfs(proc_root=Path("/proc"), cgroup_root=Path("/sys/fs/cgroup"))

    identity = real.identify(os.getpid())

    assert identity is not None
    assert identity == real.identify(os.getpid())
    assert real.mounts("self") == real.mounts(os.getpid()) != ()
    assert boot_id(Path("/proc")) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_real_process_that_ended_is_gone() -> None:
    real = Procfs(proc_root=Path("/proc"), cgroup_root=Path("/sys/fs/cgroup"))
    child = subprocess.Popen(["true"])
    child.wait()

    assert real.identify(child.pid) is None
    assert real.locate(child.pid) is None
