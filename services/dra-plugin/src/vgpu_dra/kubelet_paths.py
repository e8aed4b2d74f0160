"""Where kubelet looks for this driver: the names of both sockets, ours and those that a predecessor may have left.

The names are those of Kubernetes' own helper library, so that any of the two finds what the other left.
Source: k8s.io/dynamic-resource-allocation, kubeletplugin/draplugin.go.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpu_daemon import options, sockets
from vgpu_dra import inventory
from vgpu_state import ids
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPaths:
    """The same path inside and outside of our container, since kubelet dials the text."""

    service: Path
    registration: Path

    @classmethod
    def below(cls, kubelet_dir: Path, *, pod_uid: PodUid | None) -> KubeletPaths:
        """The pod's own names; the plain ones where it has no uid. Two pods of a rolling update share neither.

        Raises:
            BadUsage: kubelet's directory is too long for any socket's path.
        """
        plugin, registry = kubelet_dir / "plugins" / inventory.DRIVER, kubelet_dir / "plugins_registry"
        candidates = [registry / name for name in _registration_names(pod_uid)]
        paths = cls(
            service=plugin / _service_name(pod_uid),
            registration=next((path for path in candidates if sockets.fits(path)), candidates[-1]),
        )
        for path in (paths.service, paths.registration):
            sockets.check_path(path, option=options.KUBELET_DIR.name)
        return paths

    def predecessors(self) -> Iterator[KubeletPaths]:
        """Every other pair that a dra-plugin can have had here, by the names that are there and say whose they are.

        A registration socket may be named by hashes alone: it is found by the service socket that is made before it.
        """
        names = (
            *_uids(self.service.parent, before="dra-", after=".sock"),
            *_uids(self.registration.parent, before=f"{inventory.DRIVER}-", after="-reg.sock"),
        )
        for pod_uid in dict.fromkeys((None, *names)):
            service = self.service.with_name(_service_name(pod_uid))
            if service != self.service:
                for name in _registration_names(pod_uid):
                    yield KubeletPaths(service=service, registration=self.registration.with_name(name))


def _uids(folder: Path, *, before: str, after: str) -> Iterator[PodUid]:
    for path in folder.glob(f"{before}*{after}"):
        with suppress(MalformedInput):  # another's name, or a hash
            yield ids.parse_pod_uid(path.name.removeprefix(before).removesuffix(after))


def _service_name(pod_uid: PodUid | None) -> str:
    return "dra.sock" if pod_uid is None else f"dra-{pod_uid}.sock"


def _registration_names(pod_uid: PodUid | None) -> tuple[str, ...]:
    """The longest first, which says most to who reads the directory."""
    if pod_uid is None:
        return (f"{inventory.DRIVER}-reg.sock",)
    return (
        f"{inventory.DRIVER}-{pod_uid}-reg.sock",
        f"{inventory.DRIVER}-{_short_hash(pod_uid, length=8)}-reg.sock",
        f"dra-{_short_hash(inventory.DRIVER + chr(0) + pod_uid, length=16)}-reg.sock",
    )


def _short_hash(text: str, *, length: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:length]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
