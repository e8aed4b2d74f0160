"""What kustomize makes of base, overlay and components: the objects that a cluster would get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_dra import feature_gates

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


_WITHOUT_NRI, _CGROUP_MODE = "../../components/without-nri", "../../components/cgroup-mode"


@pytest.mark.parametrize("resources", ["../production", "../../base"])
def test_without_nri_the_pod_has_no_nri_plugin_and_asks_for_nothing_of_the_runtimes(overlay: Path, resources: str) -> None:
    objects = render(_write(overlay, resources=[resources], components=[_WITHOUT_NRI]))

    pod = _pod(objects)
    assert [c["name"] for c in pod["containers"]] == ["dra-plugin", "registry"]
    paths = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert {path for path in paths if "nri" in path} == set()
    assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert _gates_off(objects) == {"NRISupport"}


def test_a_copy_of_production_leaves_nri_plugin_out_too(overlay: Path) -> None:
    """Its own patches come after those of components: one that names nri-plugin would bring the container back, half of it."""
    production = yaml.safe_load((KUSTOMIZE / "overlays/production/kustomization.yaml").read_text())
    for file in ("daemonset.yaml", "resourcequota.yaml"):
        shutil.copy(KUSTOMIZE / "overlays/production" / file, overlay)

    objects = render(_write(overlay, **(production | {"components": [*production["components"], _WITHOUT_NRI]})))

    assert [c["name"] for c in _pod(objects)["containers"]] == ["dra-plugin", "registry"]
    assert _container(objects, "registry")["resources"]["limits"] == {"memory": "256Mi"}


@pytest.mark.parametrize(
    ("components", "off"),
    [
        ([], set()),
        ([_CGROUP_MODE], {"DevicePluginClientMode"}),
        ([_CGROUP_MODE, _WITHOUT_NRI], {"DevicePluginClientMode", "NRISupport"}),
        ([_WITHOUT_NRI, _CGROUP_MODE], {"DevicePluginClientMode", "NRISupport"}),
    ],
)
def test_components_turn_feature_gates_off_one_beside_the_other(overlay: Path, components: list[str], off: set[str]) -> None:
    objects = render(_write(overlay, components=components))

    assert _gates_off(objects) == off
    # For pods of before, whose processes go on registering.
    assert "registry" in [c["name"] for c in _pod(objects)["containers"]]


def _gates_off(objects: Objects) -> set[str]:
    """Those of dra-plugin's gates that are on by default and off here, read as it reads them, after kubelet's substitution."""
    values: dict[str, str] = {}
    for entry in _container(objects, "dra-plugin")["env"]:
        # kubelet knows the variables that stand before.
        values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), entry.get("value", ""))
    states = feature_gates.parse_feature_gates(values["VGPU_FEATURE_GATES"]).states()
    return {name for name, is_on in feature_gates.FeatureGates().states().items() if is_on and not states[name]}


def test_without_nvidias_runtime_dra_plugin_alone_is_privileged(overlay: Path) -> None:
    _write(overlay, components=["../../components/without-nvidia-runtime"])

    objects = render(overlay)

    assert "runtimeClassName" not in _pod(objects)
    assert _container(objects, "dra-plugin")["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in _container(objects, "dra-plugin")["env"]
    for service in ("nri-plugin", "registry"):
        assert _container(objects, service)["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in _container(objects, service)["securityContext"]
