"""The names of kubelet's two sockets: one pair for each pod, and which pairs predecessors may have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_daemon.run import BadUsage
from vgpu_dra.config import parse_config
from vgpu_dra.kubelet_paths import KubeletPaths
from vgpu_state.ids import PodUid

POD = PodUid("7f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10")


def _registration(kubelet_dir: str) -> str:
    return KubeletPaths.below(Path(kubelet_dir), pod_uid=POD).registration.name


def test_without_a_pod_both_have_the_plain_names() -> None:
    paths = parse_config(["--claims-from=/c"], {}).kubelet

    assert str(paths.service) == "/var/lib/kubelet/plugins/manager.nvidia.com/dra.sock"
    assert str(paths.registration) == "/var/lib/kubelet/plugins_registry/manager.nvidia.com-reg.sock"


def test_a_pod_has_sockets_of_its_own() -> None:
    paths = parse_config(["--claims-from=/c"], {"VGPU_POD_UID": POD}).kubelet

    assert str(paths.service) == f"/var/lib/kubelet/plugins/manager.nvidia.com/dra-{POD}.sock"
    assert str(paths.registration) == f"/var/lib/kubelet/plugins_registry/manager.nvidia.com-{POD}-reg.sock"


def test_registration_takes_the_first_of_three_names_that_fits_107_bytes() -> None:
    """Hashes: `printf %s "$uid" | sha256sum`, and with driver and NUL before it; base64url without padding."""
    assert _registration(f"/{'k' * 24}") == f"manager.nvidia.com-{POD}-reg.sock"  # 107 bytes in all
    assert _registration(f"/{'k' * 25}") == "manager.nvidia.com-973hY3L1zmM-reg.sock"


def test_service_socket_that_does_not_fit_is_refused_with_the_option() -> None:
    with pytest.raises(BadUsage) as refusal:
        parse_config(["--claims-from=/c", f"--kubelet-dir=/{'k' * 40}", f"--pod-uid={POD}"], {})

    assert str(refusal.value) == (
        f"socket path /{'k' * 40}/plugins/manager.nvidia.com/dra-{POD}.sock has 114 bytes, "
        "a unix socket's has room for 107; choose a shorter --kubelet-dir"
    )


def test_private_socket_that_does_not_fit_is_refused_with_the_option() -> None:
    with pytest.raises(BadUsage, match=r"/partitions/claims\.sock has 120 bytes, .*; choose a shorter --run-dir$"):
        parse_config(["--claims-from=/c", f"--run-dir=/{'r' * 96}"], {})


def test_pod_uid_that_is_none_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"^pod uid is '\.\./x'; expected a lower-case UUID .*\(--pod-uid\)$"):
        parse_config(["--claims-from=/c", "--pod-uid=../x"], {})


def test_predecessors_are_found_by_the_names_that_say_whose_they_are(short_dir: Path) -> None:
    service, registration = short_dir / "plugins/manager.nvidia.com", short_dir / "plugins_registry"
    service.mkdir(parents=True)
    registration.mkdir()
    other, third = "11111111-8f0a-4f57-9d0e-6a6d1b2c7e10", "33333333-8f0a-4f57-9d0e-6a6d1b2c7e10"
    for name in (f"dra-{POD}.sock", f"dra-{other}.sock", "dra-x.sock", "drama.sock", "checkpoint.json"):
        (service / name).touch()
    for name in (f"manager.nvidia.com-{third}-reg.sock", f"gpu.example.com-{other}-reg.sock", "manager.nvidia.com-x-reg.sock"):
        (registration / name).touch()

    found = [(p.service.name, p.registration.name) for p in KubeletPaths.below(short_dir, pod_uid=POD).predecessors()]

    assert ("dra.sock", "manager.nvidia.com-reg.sock") in found
    assert [registration for service, registration in found if service == f"dra-{other}.sock"] == [
        f"manager.nvidia.com-{other}-reg.sock",
        "manager.nvidia.com-PZqc-_ZK8Sw-reg.sock",
        "dra-PHhiYFSiEEU-036jJJ0Glw-reg.sock",
    ]
    assert {service for service, _ in found} == {"dra.sock", f"dra-{other}.sock", f"dra-{third}.sock"}
