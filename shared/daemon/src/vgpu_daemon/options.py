"""Command-line options, each also an environment variable VGPU_<NAME>; the one home of their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vgpu_daemon.run import EXIT_USAGE, leave

ENV_PREFIX = "VGPU_"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name with dashes, its default and what it means."""

    name: str
    default: str
    meaning: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.replace("-", "_").upper()


MANAGER_DIR = Option("manager-dir", "/etc/vgpu-manager", "the manager directory as this process sees it")
HOST_MANAGER_DIR = Option("host-manager-dir", "/etc/vgpu-manager", "the same directory as the container runtime sees it")
HOST_ROOT = Option("host-root", "/proc/1/root", "the host's root, to compare both views; empty: they are not compared")
RUN_DIR = Option("run-dir", "/run/vgpu-manager", "where the private and the debug sockets are")
KUBELET_DIR = Option("kubelet-dir", "/var/lib/kubelet", "kubelet's root directory, the same path inside and outside")
CDI_DIR = Option("cdi-dir", "/var/run/cdi", "where CDI files are written for the runtime")
NRI_SOCKET = Option("nri-socket", "/var/run/nri/nri.sock", "the runtime's NRI socket")
DRIVER_ROOT = Option("driver-root", "/", "where the NVIDIA driver's libraries are found, as this process sees it")
HOST_DRIVER_ROOT = Option("host-driver-root", "", "the same root as the runtime sees it; empty: the same path")
DEV_ROOT = Option("dev-root", "/dev", "where the GPU's device nodes are, as the runtime sees them")
PROC_ROOT = Option("proc-root", "/proc", "the host's proc file system")
CGROUP_ROOT = Option("cgroup-root", "/sys/fs/cgroup", "the host's cgroup file systems")
CLAIMS_FROM = Option("claims-from", "api", "`api`, or a directory of ResourceClaim manifests that carry their allocation")
LIBRARY_VERSION = Option("library-version", "v1.0.0", "which libvgpu-control.so.<version> of the manager directory is mounted")
RUNTIME_HANDLERS = Option(
    "runtime-handlers",
    ",nvidia*",
    "patterns of runtime handlers that may run a vGPU container, joined by commas; the empty one is the runtime's plain handler",
)
ALLOW_PRIVILEGED = Option("allow-privileged", "false", "`true` lets privileged containers use a vGPU")
NODE_NAME = Option("node-name", "", "this node's name, as in spec.nodeName; empty: the host's name")
POD_UID = Option("pod-uid", "", "the uid of this process's pod: two pods then have sockets of their own; empty: plain names")
GPU_POLL = Option("gpu-poll", "10", "seconds between two looks at the GPUs; a taint goes after three clean ones")
ADDITIONAL_XIDS_TO_IGNORE = Option("additional-xids-to-ignore", "", "XIDs that taint no GPU, beside 13,31,43,45,68,109")
DEVICE_CORES_RATIO = Option(
    "device-cores-ratio", "100", "percent of a GPU's compute that is given away in all; above 100: oversubscribed"
)
DEVICE_MEMORY_RATIO = Option(
    "device-memory-ratio", "100", "percent of a GPU's memory that is given away in all; above 100: oversubscribed"
)
DEVICE_KIND_WITHOUT_COUNTERS = Option(
    "device-kind-without-counters",
    "vgpu",
    "`vgpu` or `gpu`: what a GPU is offered as where the cluster cannot count what devices share",
)
FEATURE_GATES = Option("feature-gates", "", "`Name=true,Other=false`: upstream's feature gates that differ from their default")
HTTP_LISTEN = Option("http-listen", "", "HOST:PORT for /livez, /readyz and /metrics; empty: only on the debug socket")


def parse(prog: str, options: Sequence[Option], argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The value of each option by name: from the command line, else from the environment, else its default.

    Ends the process with exit code 2 and the usage when the command line has anything else.
    """
    parser = argparse.ArgumentParser(prog=prog, exit_on_error=False, allow_abbrev=False)
    for option in options:
        default = environ.get(option.env, option.default)
        shown = f" [{option.env}; default {option.default}]" if option.default else f" [{option.env}]"
        parser.add_argument(f"--{option.name}", default=default, help=(option.meaning + shown).replace("%", "%%"))
    try:
        known, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as exc:
        parser.print_usage()
        print(f"{prog}: {exc}")  # noqa: T201 - usage goes to the person who typed it
        leave(EXIT_USAGE)
    if unknown:
        parser.print_usage()
        print(f"{prog}: unknown argument {unknown[0]}")  # noqa: T201 - usage goes to the person who typed it
        leave(EXIT_USAGE)
    return {option.name: getattr(known, option.name.replace("-", "_")) for option in options}
