"""What kustomize makes of base, overlay and components: the objects that a cluster would get."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.render

KUSTOMIZE = Path(__file__).parents[2] / "deploy/kustomize"
SERVICES = ["dra-plugin", "nri-plugin", "registry"]

Objects = dict[str, dict[str, Any]]  # by kind, and a device class by its name too; nothing is there twice


def _renderer() -> list[str]:
    """The command that renders a directory: what deploy/install_kustomize.sh found or installed."""
    cache = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "/var/cache")
    if kubectl := shutil.which("kubectl"):
        return [kubectl, "kustomize"]
    if kustomize := shutil.which("kustomize") or shutil.which(f"{cache}/vgpu-tools/kustomize"):
        return [kustomize, "build"]
    pytest.fail("no kubectl and no kustomize: run `make kustomize` first")


def render(directory: Path) -> Objects:
    outcome = subprocess.run([*_renderer(), str(directory)], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    documents = list(yaml.safe_load_all(outcome.stdout))
    objects = {f"DeviceClass {d['metadata']['name']}" if d["kind"] == "DeviceClass" else d["kind"]: d for d in documents}
    assert len(objects) == len(documents)
    return objects


def _pod(objects: Objects) -> dict[str, Any]:
    pod: dict[str, Any] = objects["DaemonSet"]["spec"]["template"]["spec"]
    return pod


def _container(objects: Objects, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [c for c in _pod(objects)["containers"] if c["name"] == name]
    return found[0]


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """A copy of the tree with room for an overlay of the test's own, as a user would add one."""
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    path = tmp_path / "kustomize/overlays/mine"
    path.mkdir()
    return path


def _write(overlay: Path, **fields: Any) -> Path:
    header = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../production"]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(header | fields))
    return overlay


def test_base_renders_alone_and_is_complete() -> None:
    objects = render(KUSTOMIZE / "base")

    assert {kind for kind in objects if not kind.startswith("DeviceClass")} == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"),
    }
    assert objects["DaemonSet"]["metadata"]["namespace"] == objects["Namespace"]["metadata"]["name"] == "vgpu-manager"
    assert objects["DaemonSet"]["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "vgpu-manager",
        "app.kubernetes.io/component": "node",
    }
    assert [c["name"] for c in _pod(objects)["containers"]] == SERVICES
    assert _pod(objects)["runtimeClassName"] == "nvidia"
    assert "priorityClassName" not in _pod(objects)


def test_base_has_a_class_for_each_type_of_device() -> None:
    objects = render(KUSTOMIZE / "base")

    assert {kind: found["spec"] for kind, found in objects.items() if kind.startswith("DeviceClass")} == {
        f"DeviceClass {type_}-manager": {
            "selectors": [
                {
                    "cel": {
                        "expression": "device.driver == 'manager.nvidia.com' && "
                        f"device.attributes['manager.nvidia.com'].type == '{type_}'"
                    }
                }
            ]
        }
        for type_ in ("vgpu", "gpu", "mig")
    }


def test_a_whole_gpu_is_an_extended_resource_where_the_user_wants_it(overlay: Path) -> None:
    objects = render(_write(overlay, components=["../../components/extended-resource"]))

    named = {kind: found["spec"].get("extendedResourceName") for kind, found in objects.items() if kind.startswith("DeviceClass")}
    assert named == {
        "DeviceClass vgpu-manager": None,
        "DeviceClass gpu-manager": "nvidia.com/gpu",
        "DeviceClass mig-manager": None,
    }
    assert objects["DeviceClass gpu-manager"]["spec"]["selectors"]


def test_production_adds_priority_tolerations_and_resources_and_changes_no_boundary() -> None:
    base, production = render(KUSTOMIZE / "base"), render(KUSTOMIZE / "overlays/production")

    assert _pod(production)["priorityClassName"] == "system-node-critical"
    assert production["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"] == [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    ]
    assert production["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": "10%"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in _pod(production)["tolerations"]
    for service in SERVICES:
        container = _container(production, service)
        assert set(container.pop("resources")["limits"]) == {"memory"}
        assert container == _container(base, service)


def test_the_library_set_is_installed_first_from_the_image_that_the_user_names(overlay: Path) -> None:
    _write(
        overlay,
        components=["../../components/library-set"],
        images=[{"name": "vgpu-library-set", "newName": "example/library", "newTag": "7"}],
        configMapGenerator=[{"name": "vgpu-library-set", "namespace": "vgpu-manager", "literals": ["version=v7"]}],
    )

    objects = render(overlay)

    config = objects["ConfigMap"]
    version = {
        "name": "VGPU_LIBRARY_VERSION",
        "valueFrom": {"configMapKeyRef": {"name": config["metadata"]["name"], "key": "version"}},
    }
    assert config["data"] == {"version": "v7"}
    assert config["metadata"]["name"].startswith("vgpu-library-set-")
    assert [c["image"] for c in _pod(objects)["initContainers"]] == ["example/library:7"]
    assert version in _pod(objects)["initContainers"][0]["env"]
    assert version in _container(objects, "dra-plugin")["env"]


def test_without_nvidias_runtime_dra_plugin_alone_is_privileged(overlay: Path) -> None:
    _write(overlay, components=["../../components/without-nvidia-runtime"])

    objects = render(overlay)

    assert "runtimeClassName" not in _pod(objects)
    assert _container(objects, "dra-plugin")["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in _container(objects, "dra-plugin")["env"]
    for service in ("nri-plugin", "registry"):
        assert _container(objects, service)["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in _container(objects, service)["securityContext"]
