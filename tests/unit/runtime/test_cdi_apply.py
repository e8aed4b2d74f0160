"""What CDI devices do to a configuration, and which of a folder's devices can be had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit import cdi_apply, cdi_spec, oci


def _config() -> oci.Config:
    return {
        "process": {"env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0, "additionalGids": []}},
        "mounts": [],
        "linux": {"devices": [], "resources": {"devices": []}},
    }


def _write(folder: Path, name: str, devices: dict[str, dict[str, Any]], **changes: Any) -> None:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.test/claim",
        "devices": [{"name": device, "containerEdits": edits} for device, edits in devices.items()],
    }
    (folder / name).write_text(json.dumps(spec | changes))


def _destinations(config: oci.Config) -> list[str]:
    return [mount["destination"] for mount in config["mounts"]]


def _mount(destination: str, source: str = "/src") -> dict[str, Any]:
    return {"hostPath": source, "containerPath": destination, "options": ["bind", "ro"]}


def test_missing_devices_are_all_named(tmp_path: Path) -> None:
    _write(tmp_path, "a.json", {"one": {"env": ["A=1"]}})

    with pytest.raises(oci.RefusedConfig) as refusal:
        cdi_apply.inject(
            _config(), cdi_apply.read_folder(tmp_path), ["vendor.test/claim=one", "vendor.test/claim=two", "other/x=y"]
        )

    assert str(refusal.value) == "unresolvable CDI devices vendor.test/claim=two, other/x=y"


def test_device_in_two_files_is_offered_by_neither(tmp_path: Path) -> None:
    _write(tmp_path, "a.json", {"one": {"env": ["A=1"]}, "two": {"env": ["A=1"]}})
    _write(tmp_path, "b.json", {"one": {"env": ["A=2"]}})

    folder = cdi_apply.read_folder(tmp_path)

    assert list(folder.devices) == ["vendor.test/claim=two"]
    assert folder.faults == {"vendor.test/claim=one": "conflicting device vendor.test/claim=one"}


def test_invalid_file_is_left_out_and_harms_no_other(tmp_path: Path) -> None:
    _write(tmp_path, "good.json", {"one": {"env": ["A=1"]}})
    _write(tmp_path, "old.json", {"two": {"mounts": [_mount("/a") | {"type": "tmpfs"}]}}, cdiVersion="0.3.0")
    (tmp_path / "half.json").write_text('{"cdiVersion"')
    (tmp_path / "spec.123.tmp").write_text("not looked at")

    folder = cdi_apply.read_folder(tmp_path)

    assert list(folder.devices) == ["vendor.test/claim=one"]
    assert sorted(folder.faults) == ["half.json", "old.json"]


def test_missing_folder_offers_nothing(tmp_path: Path) -> None:
    assert cdi_apply.read_folder(tmp_path / "absent").devices == {}


def test_cache_offers_what_the_folder_has_now(tmp_path: Path) -> None:
    """Files come, are replaced by rename and go; one that stays is the same value."""
    cache = cdi_apply.CdiCache(tmp_path)
    _write(tmp_path, "a.json", {"one": {"env": ["A=1"]}})
    _write(tmp_path, "b.json", {"two": {"env": ["B=1"]}})
    before = cache.now()

    (tmp_path / "b.json").unlink()
    _write(tmp_path, "c.new", {"one": {"env": ["A=2"]}, "three": {"env": ["C=1"]}})
    (tmp_path / "c.new").rename(tmp_path / "c.json")
    beside = cache.now()
    _write(tmp_path, "a.new", {"four": {"env": ["A=1"]}})
    (tmp_path / "a.new").rename(tmp_path / "a.json")
    after = cache.now()

    assert list(before.devices) == ["vendor.test/claim=one", "vendor.test/claim=two"]
    assert (list(beside.devices), list(beside.faults)) == (["vendor.test/claim=three"], ["vendor.test/claim=one"])
    assert list(after.devices) == ["vendor.test/claim=four", "vendor.test/claim=one", "vendor.test/claim=three"]
    assert after.devices["vendor.test/claim=three"] is beside.devices["vendor.test/claim=three"]


def test_later_device_wins_a_variable_which_keeps_its_place(tmp_path: Path) -> None:
    _write(tmp_path, "a.json", {"one": {"env": ["A=1", "B=1"]}, "two": {"env": ["A=2"]}}, containerEdits={"env": ["PATH=/cdi"]})
    config = _config()

    cdi_apply.inject(config, cdi_apply.read_folder(tmp_path), ["vendor.test/claim=one", "vendor.test/claim=two"])

    assert config["process"]["env"] == ["PATH=/cdi", "A=2", "B=1"]


def test_edits_of_the_file_come_before_those_of_its_devices_and_once(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "a.json",
        {"one": {"env": ["A=device"]}, "two": {"env": ["B=1"]}},
        containerEdits={"env": ["A=file"]},
    )
    config = _config()

    cdi_apply.inject(config, cdi_apply.read_folder(tmp_path), ["vendor.test/claim=one", "vendor.test/claim=two"])

    assert config["process"]["env"] == ["PATH=/bin", "A=device", "B=1"]


def test_mount_replaces_one_at_the_same_destination_and_parents_come_first() -> None:
    config = _config()
    oci.put_mount(config, destination="/a/b/c", source="/user", type="bind", options=["rbind"])
    oci.put_mount(config, destination="/a/b", source="/user", type="bind", options=["rbind"])

    cdi_apply.apply_edits(
        config,
        cdi_spec.Edits(
            mounts=(
                cdi_spec.CdiMount(host_path="/cdi", container_path="/a/b", options=("bind",)),
                cdi_spec.CdiMount(host_path="/cdi", container_path="/z"),
                cdi_spec.CdiMount(host_path="/cdi", container_path="/a"),
            )
        ),
    )

    assert _destinations(config) == ["/z", "/a", "/a/b", "/a/b/c"]
    assert config["mounts"][2] == {"destination": "/a/b", "type": "", "source": "/cdi", "options": ["bind"]}


def test_trailing_slash_is_another_destination_of_the_same_depth() -> None:
    config = _config()
    oci.put_mount(config, destination="/a/b/", source="/user", type="bind", options=["rbind"])

    cdi_apply.apply_edits(config, cdi_spec.Edits(mounts=(cdi_spec.CdiMount(host_path="/cdi", container_path="/a/b"),)))

    assert _destinations(config) == ["/a/b/", "/a/b"]


def test_adjusted_mounts_of_one_depth_are_in_the_order_of_their_names() -> None:
    config = _config()
    for destination in ("/z", "/b/c", "/a", "/b"):
        oci.put_mount(config, destination=destination, source="/s", type="bind", options=[])

    oci.sort_mounts_by_depth_and_name(config)

    assert _destinations(config) == ["/a", "/b", "/z", "/b/c"]


def test_node_takes_its_numbers_from_the_host_and_its_owner_from_the_user() -> None:
    config = _config()
    config["process"]["user"]["uid"] = 1000

    cdi_apply.apply_edits(config, cdi_spec.Edits(device_nodes=(cdi_spec.DeviceNode(path="/dev/spare", host_path="/dev/null"),)))

    assert config["linux"]["devices"] == [{"path": "/dev/spare", "type": "c", "major": 1, "minor": 3, "uid": 1000}]
    assert config["linux"]["resources"]["devices"] == [{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}]


def test_node_with_numbers_of_its_own_needs_none_on_the_host() -> None:
    config = _config()

    cdi_apply.apply_edits(
        config, cdi_spec.Edits(device_nodes=(cdi_spec.DeviceNode(path="/dev/nvidia9", type="c", major=195, minor=9),))
    )

    assert config["linux"]["devices"] == [{"path": "/dev/nvidia9", "type": "c", "major": 195, "minor": 9}]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"path": "/dev/nvidia-none"}, 'failed to stat CDI host device "/dev/nvidia-none": lstat'),
        ({"path": "/etc"}, '"/etc" is not a device node'),
        ({"path": "/dev/null", "type": "b"}, "host type mismatch (b, c)"),
    ],
)
def test_node_that_the_host_lacks_is_refused(node: dict[str, str], reason: str) -> None:
    with pytest.raises(oci.RefusedConfig) as refusal:
        cdi_apply.apply_edits(_config(), cdi_spec.Edits(device_nodes=(cdi_spec.DeviceNode(**node),)))  # type: ignore[arg-type]  # paths and types are text

    assert reason in str(refusal.value)
