"""The manifests and docker-compose.yml: they name what exists, and they keep the boundaries between the three services."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
KUSTOMIZATIONS = sorted(KUSTOMIZE.rglob("kustomization.yaml"))
SERVICES = ("dra-plugin", "nri-plugin", "registry")
MODULES = {"dra-plugin": "vgpu_dra", "nri-plugin": "vgpu_nri", "registry": "vgpu_registry"}

MANAGER = "/etc/vgpu-manager"
HOST_PATHS = {
    "/etc/vgpu-manager": "DirectoryOrCreate",
    "/etc/vgpu-manager/registry": "DirectoryOrCreate",
    "/run/vgpu-manager/partitions": "DirectoryOrCreate",
    "/run/vgpu-manager/registrations": "DirectoryOrCreate",
    "/run/vgpu-manager/nri": "DirectoryOrCreate",
    "/run/vgpu-manager/debug": "DirectoryOrCreate",
    "/var/lib/kubelet/plugins/manager.nvidia.com": "DirectoryOrCreate",
    "/var/lib/kubelet/plugins_registry": "Directory",
    "/var/lib/kubelet/pod-resources": "Directory",
    "/var/run/cdi": "DirectoryOrCreate",
    "/var/run/nri": "Directory",
    "/usr": "Directory",
    "/dev": "Directory",
    "/sys/fs/cgroup": "Directory",
}

Boundaries = set[tuple[str, str, bool]]  # host path, path in the container, read-only


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def _pod(path: Path = KUSTOMIZE / "base/daemonset.yaml") -> dict[str, Any]:
    pod: dict[str, Any] = _documents(path)[0]["spec"]["template"]["spec"]
    return pod


def _containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in [*pod.get("initContainers", []), *pod.get("containers", [])]}


def _host_mounts(container: str) -> Boundaries:
    pod = _pod()
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    mounts = _containers(pod)[container]["volumeMounts"]
    return {(host[m["name"]], m["mountPath"], m.get("readOnly", False)) for m in mounts if m["name"] in host}


def _compose() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def _compose_mounts(service: str) -> Boundaries:
    return {(v["source"], v["target"], v.get("read_only", False)) for v in _compose()[service]["volumes"]}


def _understood(service: str) -> set[str]:
    """The environment variables that the service itself says it reads."""
    usage = subprocess.run([sys.executable, "-m", MODULES[service], "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\[(VGPU_[A-Z_]+)[;\]]", usage))


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda p: str(p.parent.relative_to(KUSTOMIZE)))
def test_a_kustomization_names_every_file_beside_it_and_nothing_else(path: Path) -> None:
    document = _documents(path)[0]
    named = [*document.get("resources", []), *(p["path"] for p in document.get("patches", []))]
    files = {n for n in named if n.endswith(".yaml")}

    assert files == {p.name for p in path.parent.iterdir()} - {"kustomization.yaml"}
    assert [n for n in named if n not in files and not (path.parent / n / "kustomization.yaml").is_file()] == []


def test_there_is_one_kustomization_for_each_thing_that_can_be_chosen() -> None:
    assert [str(p.parent.relative_to(KUSTOMIZE)) for p in KUSTOMIZATIONS] == [
        "base",
        "components/cgroup-mode",
        "components/extended-resource",
        "components/library-set",
        "components/resources",
        "components/without-nri",
        "components/without-nvidia-runtime",
        "overlays/production",
    ]


def test_the_pod_has_the_three_services_each_in_a_container_of_its_own() -> None:
    pod = _pod()

    assert tuple(c["name"] for c in pod["containers"]) == SERVICES
    assert pod["hostPID"] is True
    assert {"hostNetwork", "hostIPC", "shareProcessNamespace"} & pod.keys() == set()


@pytest.mark.parametrize("service", SERVICES)
def test_every_variable_set_for_a_service_is_one_it_reads(service: str) -> None:
    set_in_manifests = {
        entry["name"]
        for path in KUSTOMIZE.rglob("daemonset.yaml")
        for name, container in _containers(_pod(path)).items()
        if name == service
        for entry in container.get("env", [])
    }
    set_in_compose = set(_compose()[service].get("environment", {}))
    ours = {name for name in set_in_manifests | set_in_compose if name.startswith("VGPU_")}

    assert ours - _understood(service) == set()


def test_no_container_is_privileged_but_dra_plugin_where_there_is_no_nvidia_runtime() -> None:
    privileged = {
        (str(path.parent.relative_to(KUSTOMIZE)), name)
        for path in KUSTOMIZE.rglob("daemonset.yaml")
        for name, container in _containers(_pod(path)).items()
        if container.get("securityContext", {}).get("privileged")
    }

    assert privileged == {("components/without-nvidia-runtime", "dra-plugin")}
    assert [s for s, c in _compose().items() if c.get("privileged")] == []


@pytest.mark.parametrize("path", ["base/daemonset.yaml", "components/library-set/daemonset.yaml"])
def test_every_container_has_a_read_only_root_and_starts_from_no_capability(path: str) -> None:
    contexts = [c["securityContext"] for c in _containers(_pod(KUSTOMIZE / path)).values() if "securityContext" in c]

    assert contexts
    for context in contexts:
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]


def test_capabilities_are_added_only_where_another_process_is_looked_into() -> None:
    added = {name: c["securityContext"]["capabilities"].get("add", []) for name, c in _containers(_pod()).items()}

    assert added == {"dra-plugin": ["SYS_PTRACE"], "nri-plugin": [], "registry": ["SYS_PTRACE", "DAC_READ_SEARCH"]}


def test_host_paths_are_these_directories_and_no_file_or_socket() -> None:
    paths = {v["hostPath"]["path"]: v["hostPath"]["type"] for v in _pod()["volumes"] if "hostPath" in v}

    assert paths == HOST_PATHS


def test_every_volume_is_mounted_somewhere() -> None:
    pod = _pod()
    mounted = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}

    assert mounted == {v["name"] for v in pod["volumes"]}


def test_kubelets_termination_log_is_not_to_be_made_in_a_directory_that_is_read_only() -> None:
    read_only = {(c, f"{path}/") for c in SERVICES for _, path, is_read_only in _host_mounts(c) if is_read_only}
    logs = {name: c.get("terminationMessagePath", "/dev/termination-log") for name, c in _containers(_pod()).items()}

    assert [(service, path) for service, path in read_only if logs[service].startswith(path)] == []


def test_only_dra_plugin_can_write_the_claims_tree() -> None:
    assert {s: (MANAGER, MANAGER, True) in _host_mounts(s) for s in SERVICES} == {
        "dra-plugin": False,
        "nri-plugin": True,
        "registry": True,
    }
    writable = {s: {host for host, _, is_read_only in _host_mounts(s) if not is_read_only} for s in SERVICES}
    assert {path for path in writable["nri-plugin"] | writable["registry"] if path.startswith(MANAGER)} == {f"{MANAGER}/registry"}
    assert writable["nri-plugin"] == {"/run/vgpu-manager/nri", "/run/vgpu-manager/debug"}
    assert writable["registry"] == {f"{MANAGER}/registry", "/run/vgpu-manager/debug"}


def test_neither_reader_reaches_the_private_socket_of_the_other() -> None:
    sockets = {s: {host for host, _, _ in _host_mounts(s) if host.startswith("/run/vgpu-manager")} for s in SERVICES}

    assert sockets["nri-plugin"] == {f"/run/vgpu-manager/{name}" for name in ("nri", "partitions", "debug")}
    assert sockets["registry"] == {f"/run/vgpu-manager/{name}" for name in ("registrations", "debug")}


@pytest.mark.parametrize("service", SERVICES)
def test_compose_draws_the_boundaries_of_the_daemon_set(service: str) -> None:
    claims = {("${VGPU_CLAIMS_DIR:-/etc/vgpu-claims}", "/etc/vgpu-claims", True)} if service == "dra-plugin" else set()
    composed, security = _compose()[service], _containers(_pod())[service]["securityContext"]

    assert _compose_mounts(service) == _host_mounts(service) | claims
    assert composed["cap_drop"] == security["capabilities"]["drop"]
    assert composed.get("cap_add", []) == security["capabilities"].get("add", [])
    assert composed["read_only"] is True
    assert composed["pid"] == "host"
    assert composed["network_mode"] == "none"
    assert ("apparmor:unconfined" in composed["security_opt"]) == ("appArmorProfile" in security)
    assert "no-new-privileges:true" in composed["security_opt"]


def test_dra_plugin_is_told_the_name_of_its_node() -> None:
    env = {e["name"]: e for e in _containers(_pod())["dra-plugin"]["env"]}

    assert env["VGPU_NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_an_update_brings_the_next_pod_up_before_it_ends_the_one_that_serves() -> None:
    strategy = _documents(KUSTOMIZE / "base/daemonset.yaml")[0]["spec"]["updateStrategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_nothing_keeps_two_pods_from_one_node() -> None:
    """A host's port would: the scheduler gives it to one pod only. Host paths are shared, and locks on them tell who serves."""
    pod = _pod()

    assert "hostNetwork" not in pod
    assert "affinity" not in pod
    assert [p for c in pod["containers"] for p in c["ports"] if "hostPort" in p] == []


def test_kubelet_sockets_of_two_pods_differ() -> None:
    env = {e["name"]: e for e in _containers(_pod())["dra-plugin"]["env"]}

    assert env["VGPU_POD_UID"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


@pytest.mark.parametrize(("service", "port"), [("dra-plugin", 9401), ("nri-plugin", 9402), ("registry", 9403)])
def test_probes_ask_the_port_that_the_service_listens_on(service: str, port: int) -> None:
    container = _containers(_pod())[service]
    listen = next(e["value"] for e in container["env"] if e["name"] == "VGPU_HTTP_LISTEN")
    probes = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert listen == f"$(POD_IP):{port}"
    assert [p["containerPort"] for p in container["ports"]] == [port]
    assert probes == {
        "startupProbe": {"path": "/livez", "port": port},
        "livenessProbe": {"path": "/livez", "port": port},
        "readinessProbe": {"path": "/readyz", "port": port},
    }


def test_the_api_token_is_mounted_into_dra_plugin_alone_which_reads_claims_and_pods_keeps_slices_and_tells() -> None:
    pod, rbac = _pod(), {d["kind"]: d for d in _documents(KUSTOMIZE / "base/rbac.yaml")}
    holders = [c["name"] for c in pod["containers"] if any(m["name"] == "api-access" for m in c["volumeMounts"])]

    assert holders == ["dra-plugin"]
    assert pod["automountServiceAccountToken"] is False
    assert rbac["ServiceAccount"]["automountServiceAccountToken"] is False
    assert rbac["ClusterRole"]["rules"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"nonResourceURLs": ["/version"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    assert rbac["ClusterRoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "vgpu-manager"}
    ]


class TestLibrarySet:
    """The component's script, run on directories of the test's own."""

    FILES = ("libvgpu-control.so.v1.0.0", "ld.so.preload", "registry/device-client")

    def install(self, tmp_path: Path, *, version: str = "v1.0.0") -> subprocess.CompletedProcess[str]:
        shell = _containers(_pod(KUSTOMIZE / "components/library-set/daemonset.yaml"))["library-set"]["command"]
        script = shell[2].replace("/library-set/", f"{tmp_path}/image/").replace(MANAGER, f"{tmp_path}/manager")
        environment = {"VGPU_LIBRARY_VERSION": version, "PATH": "/usr/bin:/bin"}
        return subprocess.run([*shell[:2], script], env=environment, capture_output=True, text=True, check=False)

    @pytest.fixture
    def image(self, tmp_path: Path) -> Path:
        for name in self.FILES:
            path = tmp_path / "image" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n")
        (tmp_path / "manager").mkdir()
        return tmp_path / "image"

    def test_it_installs_the_three_files_that_prepare_asks_for(self, image: Path, tmp_path: Path) -> None:
        assert self.install(tmp_path).returncode == 0

        assert {name: (tmp_path / "manager" / name).read_text() for name in self.FILES} == {n: f"{n}\n" for n in self.FILES}
        assert (tmp_path / "manager/registry").stat().st_mode & 0o777 == 0o711
        assert (tmp_path / "manager/registry/device-client").stat().st_mode & 0o777 == 0o755

    def test_it_leaves_a_file_that_is_there_already_to_those_who_have_it_mounted(self, image: Path, tmp_path: Path) -> None:
        self.install(tmp_path)
        before = {name: (tmp_path / "manager" / name).stat().st_ino for name in self.FILES}
        (image / "ld.so.preload").write_text("another\n")

        self.install(tmp_path)

        changed = [name for name in self.FILES if (tmp_path / "manager" / name).stat().st_ino != before[name]]
        assert changed == ["ld.so.preload"]

    def test_it_fails_and_names_the_file_that_the_image_lacks(self, image: Path, tmp_path: Path) -> None:
        outcome = self.install(tmp_path, version="v2.0.0")

        assert outcome.returncode != 0
        assert "libvgpu-control.so.v2.0.0" in outcome.stderr
