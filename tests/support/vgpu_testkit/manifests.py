"""Manifests as the scheduler leaves them: ResourceClaims with their allocation, and the Pods that they are reserved for."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Share:
    """One allocation result: `memory` and `cores` as quantities, None where the claim omits them.

    A device that is not shared has neither, and no share id: `whole`.
    """

    request: str
    device: str
    cores: str | None = "50"
    memory: str | None = "8Gi"
    share_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    has_admin_access: bool = False

    def result(self, *, pool: str) -> dict[str, Any]:
        row: dict[str, Any] = {"request": self.request, "driver": "manager.nvidia.com", "pool": pool, "device": self.device}
        if self.share_id:
            consumed = {k: v for k, v in (("cores", self.cores), ("memory", self.memory)) if v is not None}
            row |= {"shareID": self.share_id, "consumedCapacity": consumed}
        return row | ({"adminAccess": True} if self.has_admin_access else {})


def whole(request: str, device: str, *, has_admin_access: bool = False) -> Share:
    """The result of a whole GPU or a MIG device."""
    return Share(request=request, device=device, cores=None, memory=None, share_id="", has_admin_access=has_admin_access)


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A container of a pod and what it refers to: requests by the name of their ResourceClaim, none meaning all of the claim.

    `kind` is "app", "init" or "sidecar". The init containers come in the order in which the pod has them.
    """

    name: str = "main"
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"slice": ()})
    kind: str = "app"

    def document(self) -> dict[str, Any]:
        claims = [
            {"name": claim} | ({"request": request} if request else {})
            for claim, requests in self.uses.items()
            for request in requests or ("",)
        ]
        return {"name": self.name, "resources": {"claims": claims}} | (
            {"restartPolicy": "Always"} if self.kind == "sidecar" else {}
        )


@dataclass(frozen=True, kw_only=True)
class PodManifest:
    """A Pod as far as it uses claims; a container knows each by the ResourceClaim's own name."""

    name: str = "pod"
    containers: tuple[Consumer, ...] = (Consumer(),)
    namespace: str = "research"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    def document(self) -> dict[str, Any]:
        claims = sorted({claim for container in self.containers for claim in container.uses})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "spec": {
                "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                "initContainers": [c.document() for c in self.containers if c.kind != "app"],
                "containers": [c.document() for c in self.containers if c.kind == "app"],
            },
        }

    def write(self, directory: Path) -> None:
        """The manifest is in `directory`, whole."""
        _write(self.document(), directory, f"{self.namespace}.{self.name}.pod.json")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A ResourceClaim that is allocated."""

    name: str
    shares: tuple[Share, ...]
    namespace: str = "research"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    pool: str = "node-a"
    annotations: Mapping[str, str] = field(default_factory=dict)
    reserved_for: tuple[PodManifest, ...] = ()

    def document(self) -> dict[str, Any]:
        results = [share.result(pool=self.pool) for share in self.shares]
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace, "uid": self.uid}
        consumers = [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in self.reserved_for]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata | ({"annotations": dict(self.annotations)} if self.annotations else {}),
            "spec": {"devices": {"requests": [{"name": s.request} for s in self.shares]}},
            "status": {"allocation": {"devices": {"results": results}}} | ({"reservedFor": consumers} if consumers else {}),
        }

    def write(self, directory: Path) -> None:
        """The manifest is in `directory`, whole."""
        _write(self.document(), directory, f"{self.namespace}.{self.name}.json")


def _write(document: dict[str, Any], directory: Path, name: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{name}"
    temporary.write_text(json.dumps(document))
    os.rename(temporary, directory / name)
