"""One CDI file is accepted or refused as the library in containerd does it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vgpu_testkit import cdi_spec

_NODE = {"path": "/dev/null"}


def _spec(**changes: Any) -> str:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.test/claim",
        "devices": [{"name": "one", "containerEdits": {"env": ["A=1"]}}],
    }
    return json.dumps({key: value for key, value in (spec | changes).items() if value is not None})


def _device(name: str = "one", **edits: Any) -> list[dict[str, Any]]:
    return [{"name": name, "containerEdits": edits or {"env": ["A=1"]}}]


def test_valid_file_gives_its_devices_and_common_edits() -> None:
    text = _spec(
        containerEdits={"env": ["COMMON=1"]},
        devices=_device(
            "0-first",
            env=["A=b=c"],
            deviceNodes=[{"path": "/dev/gpu0", "hostPath": "/host/gpu0", "type": "c", "major": 195, "minor": 3}],
            mounts=[{"hostPath": "tmpfs", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=2m"]}],
        ),
    )

    file = cdi_spec.parse_json(text)

    assert file.kind == "vendor.test/claim"
    assert file.edits.env == ("COMMON=1",)
    assert file.devices["0-first"] == cdi_spec.Edits(
        env=("A=b=c",),
        device_nodes=(cdi_spec.DeviceNode(path="/dev/gpu0", host_path="/host/gpu0", type="c", major=195, minor=3),),
        mounts=(cdi_spec.CdiMount(host_path="tmpfs", container_path="/scratch", type="tmpfs", options=("size=2m",)),),
    )


def test_yaml_file_reads_like_json() -> None:
    text = "cdiVersion: v0.5.0\nkind: vendor.test/claim\ndevices:\n- name: one\n  containerEdits:\n    env: [A=1]\n"

    assert cdi_spec.parse_yaml(text) == cdi_spec.parse_json(_spec())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "spec is no object"),
        ('{"kind": "a/b", "kind": "a/b"}', 'key "kind" twice'),
        (_spec(cdiVersion=None), 'invalid version ""'),
        (_spec(cdiVersion="0.9.0"), 'invalid version "0.9.0"'),
        (_spec(cdiVersion="1.1.0"), 'invalid version "1.1.0"'),
        (_spec(kind="vendor.test"), "one slash is needed"),
        (_spec(kind="vendor.test/a/b"), "one slash is needed"),
        (_spec(kind="9vendor/claim"), 'invalid vendor or class "9vendor"'),
        (_spec(kind="vendor.test/claim-"), 'invalid vendor or class "claim-"'),
        (_spec(extra=1), 'spec has an unknown field "extra"'),
        (_spec(devices=None), "no devices"),
        (_spec(devices=[]), "no devices"),
        (_spec(devices=[{"name": "one"}]), 'invalid device "one", empty device edits'),
        (_spec(devices=[{"name": "one", "containerEdits": {}}]), 'invalid device "one", empty device edits'),
        (_spec(devices=_device() + _device()), 'multiple devices with the same name "one"'),
        (_spec(devices=_device("a/b")), 'invalid device name "a/b"'),
        (_spec(devices=_device("a-")), 'invalid device name "a-"'),
        (_spec(devices=_device("")), 'invalid device name ""'),
        (_spec(devices=_device(netDevices=[])), 'containerEdits has an unknown field "netDevices"'),
        (_spec(devices=_device(env=["=1"])), 'invalid environment variable "=1"'),
        (_spec(devices=_device(env=["A"])), 'invalid environment variable "A"'),
        (_spec(devices=_device(env="A=1")), "containerEdits.env is of type str; expected list"),
        (_spec(devices=_device(env=[1])), "containerEdits.env is of type int; expected str"),
        (_spec(devices=_device(deviceNodes=[{}])), "invalid (empty) device path"),
        (_spec(devices=_device(deviceNodes=[_NODE | {"type": "x"}])), 'invalid type "x"'),
        (_spec(devices=_device(deviceNodes=[_NODE | {"permissions": "rx"}])), 'invalid permissions "rx"'),
        (_spec(devices=_device(deviceNodes=[_NODE | {"major": True}])), "expected int"),
        (_spec(devices=_device(mounts=[{"containerPath": "/a"}])), "empty host path"),
        (_spec(devices=_device(mounts=[{"hostPath": "/a"}])), "empty container path"),
        (
            _spec(devices=_device(mounts=[{"hostPath": "/a", "containerPath": "/b", "readOnly": True}])),
            'unknown field "readOnly"',
        ),
        (_spec(devices=_device(hooks=[{"hookName": "later", "path": "/a"}])), 'invalid hook name "later"'),
        (_spec(devices=_device(hooks=[{"hookName": "poststop"}])), "with empty path"),
    ],
)
def test_file_that_breaks_a_rule_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(cdi_spec.InvalidCdi) as refusal:
        cdi_spec.parse_json(text)

    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("too_low", "needed", "changes"),
    [
        ("0.3.0", "0.4.0", {"devices": _device(mounts=[{"hostPath": "tmpfs", "containerPath": "/a", "type": "tmpfs"}])}),
        ("0.4.0", "0.5.0", {"devices": _device("0one")}),
        ("0.4.0", "0.5.0", {"devices": _device(deviceNodes=[_NODE | {"hostPath": "/dev/zero"}])}),
        ("0.5.0", "0.6.0", {"kind": "vendor.test/a.b"}),
        ("0.5.0", "0.6.0", {"annotations": {"a": "b"}}),
        ("0.6.0", "0.7.0", {"devices": _device(additionalGids=[5])}),
        ("0.6.0", "0.7.0", {"devices": _device(intelRdt={})}),
    ],
)
def test_version_below_the_features_used_is_refused(too_low: str, needed: str, changes: dict[str, Any]) -> None:
    with pytest.raises(cdi_spec.InvalidCdi, match=f"must be at least v{needed}, but was v{too_low}"):
        cdi_spec.parse_json(_spec(cdiVersion=too_low, **changes))

    assert cdi_spec.parse_json(_spec(cdiVersion=needed, **changes)).devices


def test_older_library_refuses_a_version_it_does_not_know() -> None:
    with pytest.raises(cdi_spec.InvalidCdi, match=r'invalid version "1\.0\.0"'):
        cdi_spec.parse_json(_spec(cdiVersion="1.0.0"), versions=cdi_spec.KNOWN_TO_0_7)

    assert cdi_spec.parse_json(_spec(cdiVersion="1.0.0")).devices
