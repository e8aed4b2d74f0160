"""argv and environment → what dra-plugin is told, validated once."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vgpu_daemon import options, sockets
from vgpu_daemon.run import BadUsage
from vgpu_dra.effects.driver_files import NodePaths
from vgpu_dra.feature_gates import FeatureGates, Gate, parse_feature_gates
from vgpu_dra.kubelet_paths import KubeletPaths
from vgpu_dra.policy import xids
from vgpu_dra.rules import NodeRules, OfferRules, Ratios, parse_ratio, parse_runtime_handlers
from vgpu_state import ids
from vgpu_state.claims import DeviceKind
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import NodeName, PodUid
from vgpu_state.layout import Layout

PROG = "vgpu-dra-plugin"
_OPTIONS = (
    options.MANAGER_DIR,
    options.HOST_MANAGER_DIR,
    options.HOST_ROOT,
    options.RUN_DIR,
    options.KUBELET_DIR,
    options.CDI_DIR,
    options.DRIVER_ROOT,
    options.HOST_DRIVER_ROOT,
    options.DEV_ROOT,
    options.PROC_ROOT,
    options.CGROUP_ROOT,
    options.CLAIMS_FROM,
    options.LIBRARY_VERSION,
    options.RUNTIME_HANDLERS,
    options.ALLOW_PRIVILEGED,
    options.NODE_NAME,
    options.POD_UID,
    options.GPU_POLL,
    options.ADDITIONAL_XIDS_TO_IGNORE,
    options.DEVICE_CORES_RATIO,
    options.DEVICE_MEMORY_RATIO,
    options.DEVICE_KIND_WITHOUT_COUNTERS,
    options.FEATURE_GATES,
    options.HTTP_LISTEN,
)
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.01, 600.0
_VERSION_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Paths, rules and addresses of one dra-plugin."""

    agent: Layout
    rules: NodeRules
    offer: OfferRules
    paths: NodePaths
    host_root: str
    run_dir: Path
    kubelet: KubeletPaths
    kubelet_dir: Path
    cdi_dir: Path
    proc_root: Path
    cgroup_root: Path
    claims_from: Path | NodeName  # a directory of manifests, or the API server, which knows this node under that name
    http_listen: str
    node_name: str  # as kubelet is told the pool; with a directory of manifests nobody checks it
    gpu_poll_s: float
    xid_rules: xids.XidRules
    gates: FeatureGates

    @property
    def partitions_socket(self) -> Path:
        return self.run_dir / "partitions" / "claims.sock"

    @property
    def registrations_socket(self) -> Path:
        return self.run_dir / "registrations" / "claims.sock"

    @property
    def debug_socket(self) -> Path:
        return self.run_dir / "debug" / "dra.sock"


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration.

    Raises:
        BadUsage: a value is not of its form; names the option.
    """
    given = options.parse(PROG, _OPTIONS, argv, environ)
    host = Layout(PurePosixPath(_absolute(given, options.HOST_MANAGER_DIR)))
    cdi_dir = _absolute(given, options.CDI_DIR)
    kubelet_dir = _absolute(given, options.KUBELET_DIR)
    run_dir = _absolute(given, options.RUN_DIR)
    if _VERSION_FORM.match(given["library-version"]) is None:
        raise BadUsage(f"--library-version is {given['library-version']!r}; expected letters, digits, dots and dashes")
    if given["allow-privileged"] not in ("true", "false"):
        raise BadUsage(f"--allow-privileged is {given['allow-privileged']!r}; expected true or false")
    try:
        handlers = parse_runtime_handlers(given["runtime-handlers"])
    except MalformedInput as exc:
        raise BadUsage(str(exc)) from exc
    node_name = given["node-name"] or socket.gethostname().lower()  # kubelet lowers the host's name too
    driver_root = _absolute(given, options.DRIVER_ROOT)
    gates = _gates(given["feature-gates"])
    offer = _offer(given, gates)
    config = Config(
        agent=Layout(PurePosixPath(_absolute(given, options.MANAGER_DIR))),
        rules=NodeRules(
            host=host,
            library_version=given["library-version"],
            private_paths=(
                str(host.root),
                str(cdi_dir),
                str(run_dir),
                str(kubelet_dir / "plugins"),
                str(kubelet_dir / "plugins_registry"),
            ),
            runtime_handlers=handlers,
            allows_privileged=given["allow-privileged"] == "true",
            ratios=offer.ratios,
            has_shares=offer.has_shares,
        ),
        offer=offer,
        paths=NodePaths(
            driver_root=driver_root,
            host_driver_root=_absolute(given, options.HOST_DRIVER_ROOT) if given["host-driver-root"] else driver_root,
            dev_root=_absolute(given, options.DEV_ROOT),
            proc_root=_absolute(given, options.PROC_ROOT),
        ),
        host_root=given["host-root"],
        run_dir=run_dir,
        kubelet_dir=kubelet_dir,
        kubelet=KubeletPaths.below(kubelet_dir, pod_uid=_pod_uid(given["pod-uid"])),
        cdi_dir=cdi_dir,
        proc_root=_absolute(given, options.PROC_ROOT),
        cgroup_root=_absolute(given, options.CGROUP_ROOT),
        claims_from=_node(node_name) if given["claims-from"] == "api" else _absolute(given, options.CLAIMS_FROM),
        http_listen=given["http-listen"],
        node_name=node_name,
        gpu_poll_s=_seconds(given, options.GPU_POLL),
        xid_rules=xids.XidRules(
            enabled=xids.parse_xids(environ.get(xids.ENABLE, "")),
            disabled=xids.parse_xids(environ.get(xids.DISABLE, "")),
            ignored=_xids(given["additional-xids-to-ignore"]),
        ),
        gates=gates,
    )
    for path in (config.partitions_socket, config.registrations_socket):
        sockets.check_path(path, option=options.RUN_DIR.name)
    return config


def _pod_uid(given: str) -> PodUid | None:
    try:
        return ids.parse_pod_uid(given) if given else None
    except MalformedInput as exc:
        raise BadUsage(f"{exc} (--pod-uid)") from exc


def _xids(given: str) -> frozenset[int]:
    parsed = xids.parse_xids(given)
    if parsed.is_everything or parsed.malformed:
        raise BadUsage(f"--additional-xids-to-ignore is {given!r}; expected numbers separated by commas")
    return parsed.codes


def _seconds(given: Mapping[str, str], option: options.Option) -> float:
    text = given[option.name]
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_POLL_S <= seconds <= _LONGEST_POLL_S:
        raise BadUsage(f"--{option.name} is {text!r}; expected {_SHORTEST_POLL_S:g} to {_LONGEST_POLL_S:g} seconds")
    return seconds


def _gates(given: str) -> FeatureGates:
    try:
        return parse_feature_gates(given)
    except MalformedInput as exc:
        raise BadUsage(f"--feature-gates is {given!r}: {exc}") from exc


def _offer(given: Mapping[str, str], gates: FeatureGates) -> OfferRules:
    kind = given["device-kind-without-counters"]
    if kind not in (DeviceKind.VGPU, DeviceKind.GPU):
        raise BadUsage(f"--device-kind-without-counters is {kind!r}; expected vgpu or gpu")
    ratios = Ratios(
        cores_percent=_ratio(given, options.DEVICE_CORES_RATIO), memory_percent=_ratio(given, options.DEVICE_MEMORY_RATIO)
    )
    return OfferRules(ratios=ratios, kind_without_counters=DeviceKind(kind), has_shares=gates.is_on(Gate.VGPU_SUPPORT))


def _ratio(given: Mapping[str, str], option: options.Option) -> int:
    try:
        return parse_ratio(given[option.name])
    except MalformedInput as exc:
        raise BadUsage(f"--{option.name} is {exc}") from exc


def _node(given: str) -> NodeName:
    try:
        return ids.parse_node_name(given)
    except MalformedInput as exc:
        raise BadUsage(f"{exc} (--node-name)") from exc


def _absolute(given: Mapping[str, str], option: options.Option) -> Path:
    path = Path(given[option.name])
    if not path.is_absolute():
        raise BadUsage(f"--{option.name} is {given[option.name]!r}; expected an absolute path")
    return path
