"""The configuration of a private containerd, in the forms of 1.x and 2.x.

Pure text. Knows which tables the two lines of releases read, and what a machine of the tests needs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from vgpu_testkit import image

# What a pod may name as its runtime handler. All are runc: what counts is the name, which NRI reports.
RUNTIME_HANDLERS = ("runc", "nvidia", "sandboxed")

_CRI_OF_1 = 'plugins."io.containerd.grpc.v1.cri"'
_CRI_OF_2 = 'plugins."io.containerd.cri.v1.runtime"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where one containerd has what."""

    root: Path
    socket: Path
    nri_socket: Path
    cdi_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cni:
    """Where the plugins and the network configurations of a containerd are whose pods have networks of their own."""

    bin_dir: Path
    conf_dir: Path


def render(major: int, places: Places, *, nri: bool, request_timeout: str, cni: Cni | None = None) -> str:
    """The text of config.toml. `request_timeout` is how long NRI waits for an answer, as Go writes durations."""
    tables = _cri_of_1(places, cni) if major == 1 else _cri_of_2(places, cni)
    return f"""{tables}
[plugins."io.containerd.nri.v1.nri"]
  disable = {str(not nri).lower()}
  socket_path = "{places.nri_socket}"
  plugin_path = "{places.root}/nri-plugins"
  plugin_config_path = "{places.root}/nri-conf.d"
  plugin_registration_timeout = "5s"
  plugin_request_timeout = "{request_timeout}"
  disable_connections = false
"""


def _cri_of_1(places: Places, cni: Cni | None) -> str:
    return f"""version = 2
{_places(places)}
[{_CRI_OF_1}]
  sandbox_image = "{image.BASE_IMAGE}"
{_cri(places)}
{_network(_CRI_OF_1, cni)}
{_handlers(f"{_CRI_OF_1}.containerd")}"""


def _cri_of_2(places: Places, cni: Cni | None) -> str:
    return f"""version = 3
{_places(places)}
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{image.BASE_IMAGE}"
[{_CRI_OF_2}]
{_cri(places)}
{_network(_CRI_OF_2, cni)}
{_handlers(f"{_CRI_OF_2}.containerd")}"""


def _places(places: Places) -> str:
    return f"""root = "{places.root}/root"
state = "{places.root}/state"
[grpc]
  address = "{places.socket}"
[ttrpc]
  address = "{places.socket}.ttrpc"
"""


def _cri(places: Places) -> str:
    # Without restrict_oom_score_adj no pod starts where root lacks CAP_SYS_RESOURCE: runc may not lower the score.
    return f"""  enable_cdi = true
  cdi_spec_dirs = ["{places.cdi_dir}"]
  disable_apparmor = true
  restrict_oom_score_adj = true"""


def _network(table: str, cni: Cni | None) -> str:
    if cni is None:
        return ""
    # The names of network namespaces are mounts, in /run/netns otherwise.
    return f"""  netns_mounts_under_state_dir = true
[{table}.cni]
  bin_dir = "{cni.bin_dir}"
  conf_dir = "{cni.conf_dir}"
"""


def _handlers(table: str) -> str:
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    handlers = "".join(
        f"""[{table}.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
[{table}.runtimes.{name}.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
"""
        for name in RUNTIME_HANDLERS
    )
    return f"""[{table}]
  default_runtime_name = "{RUNTIME_HANDLERS[0]}"
{handlers}"""
