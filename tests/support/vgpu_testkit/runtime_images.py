"""Root folders of stand-in containers, made from programs of this machine.

Knows what a container's root holds. A program that is not static brings the libraries that it needs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vgpu_testkit.image import BASE_IMAGE

_FOLDERS = ("bin", "dev", "etc", "proc", "root", "sys", "usr/lib", "var")
_PASSWD = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
# Where there is no busybox: what the tests' and the demo's commands use.
_HOST_PROGRAMS = (
    "sh",
    "sleep",
    "cat",
    "ls",
    "id",
    "env",
    "touch",
    "rm",
    "mv",
    "mkdir",
    "stat",
    "mount",
    "umount",
    "true",
    "kill",
    "grep",
    "cut",
    "setsid",
)


class ImageNotFound(Exception):
    """Raised for the name of an image that was not added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


class Images:
    """The images of one runtime; the base image, which has a shell, is always there."""

    def __init__(self, *, busybox: Path = Path("/bin/busybox")) -> None:
        """Where there is no busybox, programs of the host take its place."""
        self._busybox = busybox
        self._images = {BASE_IMAGE: _Image()}

    def add(self, name: str, *, files: Mapping[str, bytes | Path] | None = None, links: Mapping[str, str] | None = None) -> None:
        """An image of the base's programs and, by absolute path in it, contents or files of the host, and links' targets."""
        self._images[name] = _Image(files=files or {}, links=links or {})

    def unpack(self, name: str, rootfs: Path) -> None:
        """Makes a container's root folder.

        Raises:
            ImageNotFound: no image has this name.
        """
        if name not in self._images:
            raise ImageNotFound(f'failed to get image "{name}": not found')
        image = self._images[name]
        for folder in _FOLDERS:
            (rootfs / folder).mkdir(parents=True)
        (rootfs / "tmp").mkdir()
        (rootfs / "tmp").chmod(0o1777)
        (rootfs / "etc/passwd").write_text(_PASSWD)
        _install_programs(rootfs, self._busybox)
        for path, content in image.files.items():
            target = _place(rootfs, path)
            target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            target.chmod(0o755)
        for path, link_target in image.links.items():
            target = _place(rootfs, path)
            if target.is_dir() and not target.is_symlink():
                target.rmdir()
            target.symlink_to(link_target)


def _place(rootfs: Path, path: str) -> Path:
    target = rootfs / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _install_programs(rootfs: Path, busybox: Path) -> None:
    if busybox.exists():
        _install(rootfs, busybox)
        listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
        for command in listed:
            if command != "busybox":
                (rootfs / "bin" / command).symlink_to("busybox")
        return
    for command in _HOST_PROGRAMS:
        if found := shutil.which(command, path="/bin:/usr/bin"):
            _install(rootfs, Path(found))


def _install(rootfs: Path, program: Path) -> None:
    shutil.copy(program, rootfs / "bin" / program.name)
    # For a static program it fails and names no path.
    needed = subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+)", needed):
        target = _place(rootfs, library)
        if not target.exists():
            shutil.copy(library, target)
