"""The command line and the environment → a Config, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vgpu_daemon import options, sockets
from vgpu_state.layout import Layout

PROG = "vgpu-registry"

_OPTIONS = (options.MANAGER_DIR, options.RUN_DIR, options.PROC_ROOT, options.CGROUP_ROOT, options.HTTP_LISTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What this process was told. Paths are as it sees them; `http_listen` "" means no TCP."""

    layout: Layout
    run_dir: Path
    proc_root: Path
    cgroup_root: Path
    http_listen: str

    @property
    def registrations_socket(self) -> Path:
        """Where dra-plugin takes PID lists."""
        return self.run_dir / "registrations" / "claims.sock"

    @property
    def debug_socket(self) -> Path:
        return self.run_dir / "debug" / "registry.sock"

    @property
    def lock(self) -> Path:
        """Held by the instance in charge. Not beside the registry socket: every container reaches that directory."""
        return self.run_dir / "debug" / "registry.lock"


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration; a wrong command line ends the process with exit code 2.

    Raises:
        BadUsage: a path is too long for a socket; names the option.
    """
    value = options.parse(PROG, _OPTIONS, argv, environ)
    config = Config(
        layout=Layout(PurePosixPath(value[options.MANAGER_DIR.name])),
        run_dir=Path(value[options.RUN_DIR.name]),
        proc_root=Path(value[options.PROC_ROOT.name]),
        cgroup_root=Path(value[options.CGROUP_ROOT.name]),
        http_listen=value[options.HTTP_LISTEN.name],
    )
    sockets.check_path(config.registrations_socket, option=options.RUN_DIR.name)
    sockets.check_path(Path(config.layout.registry_socket), option=options.MANAGER_DIR.name)
    return config
