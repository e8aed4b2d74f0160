"""The command line and environment, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgpu_daemon import options, sockets

PROG: Final = "vgpu-nri-plugin"
_OPTIONS = (options.RUN_DIR, options.NRI_SOCKET, options.HTTP_LISTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`http_listen` is HOST:PORT, "" for none."""

    run_dir: Path
    nri_socket: str
    http_listen: str = ""

    @property
    def partitions_socket(self) -> Path:
        return self.run_dir / "partitions" / "claims.sock"

    @property
    def debug_socket(self) -> Path:
        return self.run_dir / "debug" / "nri.sock"

    @property
    def lock(self) -> Path:
        return self.run_dir / "nri-plugin.lock"

    @property
    def episode(self) -> Path:
        """Exists while a restart for want of a session has been asked for; the directory is on tmpfs."""
        return self.run_dir / "nri-plugin.no-session"


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Ends the process with exit code 2 and the usage when the command line is wrong.

    Raises:
        BadUsage: a path is too long for a socket; names the option.
    """
    given = options.parse(PROG, _OPTIONS, argv, environ)
    config = Config(run_dir=Path(given["run-dir"]), nri_socket=given["nri-socket"], http_listen=given["http-listen"])
    sockets.check_path(config.partitions_socket, option=options.RUN_DIR.name)
    sockets.check_path(Path(config.nri_socket), option=options.NRI_SOCKET.name)
    return config
