"""A containerd of the test's own: where it is installed, its configuration, and its life.

Everything it has (state, sockets, CDI folder, logs) lies under one folder, so that several can run beside each other
and beside the host's. Knows nothing of pods: those are made through `cri`. All calls block; containerd is up, or
gone, when they return.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vgpu_testkit import containerd_config, image, pod_cgroups

# 108 bytes of sun_path, less the final NUL, less ".ttrpc" which containerd appends to one of them.
_SOCKET_PATH_BYTES = 107
_START_S = 20.0
_STOP_S = 20.0
_POLL_S = 0.02
_SHIM = "containerd-shim-runc-v2"


def find_containerds() -> dict[str, Path]:
    """The containerd programs on this machine: "1.7" and "2" from `make containerd`, "path" for one on PATH >= 1.7."""
    found = {}
    for version in ("1.7", "2"):
        program = _cache_folder() / version / "usr/bin/containerd"
        if program.exists():
            found[version] = program
    on_path = shutil.which("containerd")
    if on_path and _release_of(Path(on_path)) >= (1, 7):
        found["path"] = Path(on_path)
    return found


def _cache_folder() -> Path:
    """Where tests/containerd/install.sh puts them."""
    base = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "/var/cache")
    return Path(base) / "vgpu-containerd"


def _version_of(program: Path) -> str:
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    number = re.search(r"\d+\.\d+\.\d+", shown)
    if number is None:
        raise ContainerdFailed(f"{program} --version says {shown.strip()!r}")
    return number[0]


def _release_of(program: Path) -> tuple[int, int]:
    major, minor, _ = _version_of(program).split(".")
    return int(major), int(minor)


class ContainerdFailed(Exception):
    """Raised when containerd does not do what a test cannot go on without; says what it wrote last."""


class Containerd:
    """One containerd in a folder of its own.

    `command_prefix` is a program that becomes containerd, as nsenter does. `nri` is that of the next start.
    """

    def __init__(
        self,
        program: Path,
        root: Path,
        *,
        cdi_dir: Path | None = None,
        nri: bool = True,
        request_timeout: str = "2s",
        cni: containerd_config.Cni | None = None,
        command_prefix: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self.socket = root / "containerd.sock"
        self.nri_socket = root / "nri.sock"
        self.cdi_dir = cdi_dir or root / "cdi"
        self.version_text = f"containerd {_version_of(program)}"
        self._program = program
        self._release = _release_of(program)
        self.nri = nri
        self._request_timeout = request_timeout
        self._cni = cni
        self._command_prefix = command_prefix
        self._log = root / "containerd.log"
        self._process: subprocess.Popen[bytes] | None = None
        longest = f"{self.socket}.ttrpc"
        if len(longest.encode()) > _SOCKET_PATH_BYTES:
            raise ValueError(f"{longest} is longer than a unix socket's path may be ({_SOCKET_PATH_BYTES} bytes)")

    @property
    def pid(self) -> int | None:
        """The process of containerd itself, None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Starts containerd on what its folder holds and imports the base image; nothing where it runs already."""
        if self.pid is not None:
            return
        for folder in ("root", "state", "nri-plugins", "nri-conf.d"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.cdi_dir.mkdir(parents=True, exist_ok=True)
        config = self.root / "config.toml"
        config.write_text(
            containerd_config.render(
                self._release[0],
                containerd_config.Places(root=self.root, socket=self.socket, nri_socket=self.nri_socket, cdi_dir=self.cdi_dir),
                nri=self.nri,
                request_timeout=self._request_timeout,
                cni=self._cni,
            )
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command_prefix, self._program, "-c", config],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until(self._answers, _START_S, "answer")
        if image.BASE_IMAGE not in self._images():
            archive = self.root / "base-image.tar"
            image.write_image(archive)
            self.import_image(archive)
            archive.unlink()

    def kill(self) -> None:
        """Ends containerd alone, by SIGKILL; containers and their shims live on."""
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Ends containerd alone, as its service manager does, and starts it again; containers live on."""
        self._signal(signal.SIGTERM)
        self.start()

    def stop(self) -> None:
        """Ends containerd, its shims, the containers and their cgroups, and takes away what they mounted.

        What lies in the folder stays. Bears repetition.
        """
        self._signal(signal.SIGTERM)
        pod_uids, shim_sockets = self._left_in_state()
        for pid in _pids_of_shims(self.socket):
            _end(pid)
        for uid in pod_uids:
            pod_cgroups.remove(uid)
        for mount_point in _mount_points_below(self.root):
            subprocess.run(["umount", "-l", mount_point], check=False, capture_output=True)
        for shim_socket in shim_sockets:
            shim_socket.unlink(missing_ok=True)

    def import_image(self, archive: Path) -> None:
        """Makes the image of an archive of `image.write_image` known to CRI under its name."""
        before = self._images_known_to_cri()
        self._ctr("images", "import", str(archive))
        # CRI hears of it by an event; its label on the image says that it has.
        self._wait_until(lambda: self._images_known_to_cri() >= before | self._images(), _START_S, "take the image")

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of what containerd wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def log_size(self) -> int:
        """How much containerd has written so far, in bytes: what `log_since` takes."""
        return self._log.stat().st_size if self._log.exists() else 0

    def log_since(self, size_bytes: int) -> str:
        """What containerd wrote after its log had that size."""
        with self._log.open("rb") as log:
            log.seek(size_bytes)
            return log.read().decode(errors="replace")

    def _ctr(self, *arguments: str) -> str:
        command = [str(self._program.parent / "ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ContainerdFailed(f"ctr {' '.join(arguments)}: {done.stderr.strip()}\n{self.log_tail()}")
        return done.stdout

    def _images(self) -> set[str]:
        return set(self._ctr("images", "ls", "-q").split())

    def _images_known_to_cri(self) -> set[str]:
        return {line.split()[0] for line in self._ctr("images", "ls").splitlines() if "io.cri-containerd.image=managed" in line}

    def _answers(self) -> bool:
        try:
            self._ctr("version")
        except ContainerdFailed:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        """Ends the process of containerd and waits for its end; nothing where it does not run."""
        if self._process is None or self.pid is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ContainerdFailed(f"containerd did not end within {_STOP_S} s\n{self.log_tail()}") from None

    def _wait_until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            if self.pid is None:
                raise ContainerdFailed(f"{self.version_text} ended by itself\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ContainerdFailed(f"{self.version_text} did not {what} within {within_s} s\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _environment(self) -> dict[str, str]:
        # The shim is found through PATH, and must be of the same release.
        return {**os.environ, "PATH": f"{self._program.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def _left_in_state(self) -> tuple[set[str], set[Path]]:
        """The pods and the shims' sockets of the containers that containerd has not taken away."""
        pod_uids, sockets = set(), set()
        for bundle in (self.root / "state/io.containerd.runtime.v2.task/k8s.io").glob("*"):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                cgroup = Path(json.loads((bundle / "config.json").read_text())["linux"]["cgroupsPath"])
                pod_uids.add(cgroup.parent.name.removeprefix("pod"))
            for note in ("address", "bootstrap.json"):  # 1.7 and 2.x
                with contextlib.suppress(FileNotFoundError):
                    sockets |= {Path(path) for path in re.findall(r"unix://([^\s\"]+)", (bundle / note).read_text())}
        return pod_uids, sockets


def _pids_of_shims(socket: Path) -> Iterator[int]:
    """The shims that report to this containerd: they outlive it on purpose and carry its socket's path."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(_SHIM.encode()) and str(socket).encode() in arguments:
                yield int(folder.name)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _mount_points_below(folder: Path) -> list[str]:
    """The innermost first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]
