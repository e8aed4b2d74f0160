"""One-layer OCI images for containers of the tests, made from busybox-static.

Knows the layout of an image archive and what the root folder of a test container holds. Knows nothing of who imports
it. No registry and no image tool is needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

BASE_IMAGE = "localhost/vgpu/busybox:1"

_BUSYBOX = Path("/bin/busybox")
_FOLDERS = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/lib", "var")
_PASSWD = b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(
    archive: Path,
    *,
    name: str = BASE_IMAGE,
    files: Mapping[str, bytes | Path] | None = None,
    links: Mapping[str, str] | None = None,
) -> None:
    """Writes an OCI image archive of busybox with all its commands in /bin, which sleeps when run.

    `files` are contents, or files of the host, by absolute path in the image, all with mode 0755; `links` are the
    targets of symbolic links by absolute path in the image. Missing parents are made.

    Raises:
        FileNotFoundError: busybox-static is not installed, or a file of the host is missing.
    """
    layer = _layer(files or {}, links or {})
    blobs = {}

    def add(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    layers = [add(layer, "application/vnd.oci.image.layer.v1.tar")]
    config = add(_config([str(one["digest"]) for one in layers]), "application/vnd.oci.image.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers,
    }
    entry = add(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    members = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
        **blobs,
    }
    with tarfile.open(archive, "w") as tar:
        for member, content in members.items():
            _add_file(tar, member, content, mode=0o644)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _config(layer_digests: list[str]) -> bytes:
    return _json(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep"], "Cmd": ["1000000"]},
            "rootfs": {"type": "layers", "diff_ids": layer_digests},
        }
    )


def _layer(files: Mapping[str, bytes | Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        extra_folders = {
            str(parent) for path in (*files, *links) for parent in Path(path.lstrip("/")).parents if str(parent) != "."
        }
        for folder in (*_FOLDERS, *sorted(extra_folders - set(_FOLDERS))):
            _add_folder(tar, folder, mode=0o1777 if folder == "tmp" else 0o755)
        _add_file(tar, "bin/busybox", _BUSYBOX.read_bytes(), mode=0o755)
        for command in _busybox_commands():
            _add_link(tar, f"bin/{command}", "busybox")
        _add_file(tar, "etc/passwd", _PASSWD, mode=0o644)
        for path, content in files.items():
            _add_file(tar, path.lstrip("/"), content if isinstance(content, bytes) else content.read_bytes(), mode=0o755)
        for path, target in links.items():
            _add_link(tar, path.lstrip("/"), target)
    return buffer.getvalue()


def _busybox_commands() -> list[str]:
    listed = subprocess.run([_BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    return [command for command in listed if command != "busybox"]


def _add_folder(tar: tarfile.TarFile, path: str, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.type = tarfile.DIRTYPE
    member.mode = mode
    tar.addfile(member)


def _add_file(tar: tarfile.TarFile, path: str, content: bytes, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(content)
    member.mode = mode
    tar.addfile(member, io.BytesIO(content))


def _add_link(tar: tarfile.TarFile, path: str, target: str) -> None:
    member = tarfile.TarInfo(path)
    member.type = tarfile.SYMTYPE
    member.linkname = target
    member.mode = 0o777
    tar.addfile(member)
