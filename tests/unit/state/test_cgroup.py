"""Which pod and container a line of /proc/<pid>/cgroup puts a process into."""

from __future__ import annotations

import pytest

from vgpu_state import cgroup
from vgpu_state.cgroup import AmbiguousCgroup, ContainerCgroup
from vgpu_state.ids import PodUid, RuntimeId

POD = PodUid("0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11")
ID = RuntimeId("9f3d6c0e4b6a41d2b7b0f5a1d2c3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b")
OTHER_POD = "11111111-2222-4333-8444-555555555555"
OTHER_ID = "b" * 64
SLICE = "kubepods-burstable-pod0b9c2a3e_54f1_4c86_9b57_2f1d2b8f4c11.slice"
IN_KUBEPODS = "/kubepods.slice/kubepods-burstable.slice/" + SLICE


@pytest.mark.parametrize(
    "path",
    [
        # cgroupfs driver: guaranteed, burstable, best effort
        f"/kubepods/pod{POD}/{ID}",
        f"/kubepods/burstable/pod{POD}/{ID}",
        f"/kubepods/besteffort/pod{POD}/{ID}",
        # cgroupfs, runtimes that prefix the id
        f"/kubepods/burstable/pod{POD}/crio-{ID}",
        # systemd driver
        f"{IN_KUBEPODS}/cri-containerd-{ID}.scope",
        f"{IN_KUBEPODS}/crio-{ID}.scope",
        f"{IN_KUBEPODS}/docker-{ID}.scope",
        f"/kubepods.slice/kubepods-pod0b9c2a3e_54f1_4c86_9b57_2f1d2b8f4c11.slice/cri-containerd-{ID}.scope",
        # kubelet below a cgroup of its own: --cgroup-root, a node that is itself a container
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-{SLICE}/cri-containerd-{ID}.scope",
        f"/docker/{'c' * 64}/kubelet/kubepods/burstable/pod{POD}/{ID}",
        # seen from inside a cgroup namespace: of a sibling container, of the host's root
        f"/../../pod{POD}/{ID}",
        f"/../../../burstable/pod{POD}/{ID}",
        f"/../../{SLICE}/cri-containerd-{ID}.scope",
        f"/pod{POD}/{ID}",
    ],
)
def test_container_is_found_in_every_layout(path: str) -> None:
    assert cgroup.locate(f"0::{path}\n") == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


def test_slice_prefix_and_id_in_one_component_are_taken_apart() -> None:
    """What containerd makes of a kubelet with cgroupfs when told to use systemd."""
    path = f"/system.slice/{SLICE}:cri-containerd:{ID}"

    assert cgroup.locate(f"0::{path}\n") == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


V1 = """\
12:pids:{path}
11:memory:{path}
10:cpu,cpuacct:{path}
1:name=systemd:{path}
"""


def test_hierarchies_of_v1_that_agree_are_one_place() -> None:
    path = f"/kubepods/burstable/pod{POD}/{ID}"

    assert cgroup.locate(V1.format(path=path)) == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


def test_hybrid_with_an_empty_unified_hierarchy_is_the_place_of_v1() -> None:
    path = f"/kubepods/pod{POD}/{ID}"

    assert cgroup.locate(V1.format(path=path) + "0::/\n") == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


def test_hierarchy_with_the_container_counts_where_others_stop_at_the_pod() -> None:
    text = f"2:cpu:/kubepods/pod{POD}\n1:memory:/kubepods/pod{POD}/{ID}\n"

    assert cgroup.locate(text) == ContainerCgroup(pod_uid=POD, container_id=ID, path=f"/kubepods/pod{POD}/{ID}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"/kubepods/pod{POD}/{ID}", f"/kubepods/pod{POD}/{OTHER_ID}"),
        (f"/kubepods/pod{POD}/{ID}", f"/kubepods/pod{OTHER_POD}/{OTHER_ID}"),
        (f"/kubepods/pod{POD}/{ID}", f"/kubepods/pod{OTHER_POD}"),
    ],
)
def test_hierarchies_that_disagree_are_ambiguous(one: str, other: str) -> None:
    assert cgroup.locate(f"2:memory:{one}\n1:pids:{other}\n") == AmbiguousCgroup((one, other))


def test_cgroup_below_the_container_is_the_containers() -> None:
    path = f"/kubepods/burstable/pod{POD}/{ID}"

    place = cgroup.locate(f"0::{path}/system.slice/sshd.service\n")

    assert place == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


def test_fake_pod_below_a_container_is_passed_over() -> None:
    path = f"/kubepods/burstable/pod{POD}/{ID}"

    place = cgroup.locate(f"0::{path}/kubepods/pod{OTHER_POD}/{OTHER_ID}\n")

    assert place == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)


def test_process_in_the_pods_own_level_has_no_container() -> None:
    assert cgroup.locate(f"0::/kubepods/pod{POD}\n") == ContainerCgroup(
        pod_uid=POD, container_id=None, path=f"/kubepods/pod{POD}"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/containerd.service",
        "/user.slice/user-1000.slice/session-3.scope",
        # a user who may make cgroups names them as kubelet does
        f"/user.slice/user-1000.slice/user@1000.service/pod{POD}/{ID}",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/{ID}",
        f"/user.slice/user-1000.slice/user@1000.service{IN_KUBEPODS}/cri-containerd-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/{SLICE}:cri-containerd:{ID}",
        f"/../../user.slice/user-1000.slice/kubepods/pod{POD}/{ID}",
        f"/system.slice/docker-{ID}.scope",
        f"/mypods/pod{POD}/{ID}",
        # no uid of a pod's form
        f"/kubepods/pod{POD.upper()}/{ID}",
        f"/kubepods/pod{POD}x/{ID}",
        f"/kubepods/podabc/{ID}",
    ],
)
def test_process_of_no_pod_has_no_place(path: str) -> None:
    assert cgroup.locate(f"0::{path}\n") is None


@pytest.mark.parametrize("name", [ID[:-1], f"{ID}0", ID.upper(), f"{ID}.service", f"../{ID}", f"x{ID}"])
def test_component_that_is_no_container_id_names_no_container(name: str) -> None:
    place = cgroup.locate_path(f"/kubepods/pod{POD}/{name}")

    assert place == ContainerCgroup(pod_uid=POD, container_id=None, path=f"/kubepods/pod{POD}")


def test_colons_in_a_path_do_not_end_it() -> None:
    assert cgroup.hierarchy_paths("1:name=systemd:/a:b:c\nno line\n0::/x\n") == ("/a:b:c", "/x")


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_name_with_another_line_separator_does_not_make_a_second_line(separator: str) -> None:
    """The kernel forbids only the line feed in the name of a cgroup, and a container may make cgroups below its own."""
    path = f"/kubepods/pod{POD}/{ID}"

    place = cgroup.locate(f"0::{path}/x{separator}9:pids:/kubepods/pod{OTHER_POD}/{OTHER_ID}\n")

    assert place == ContainerCgroup(pod_uid=POD, container_id=ID, path=path)
