"""ResourceClaim manifests with their allocation, as the scheduler leaves them."""

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
class Manifest:
    """A ResourceClaim that is allocated."""

    name: str
    shares: tuple[Share, ...]
    namespace: str = "research"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    pool: str = "node-a"
    annotations: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        results = [share.result(pool=self.pool) for share in self.shares]
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace, "uid": self.uid}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata | ({"annotations": dict(self.annotations)} if self.annotations else {}),
            "spec": {"devices": {"requests": [{"name": s.request} for s in self.shares]}},
            "status": {"allocation": {"devices": {"results": results}}},
        }

    def write(self, directory: Path) -> None:
        """The manifest is in `directory`, whole."""
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{self.name}"
        temporary.write_text(json.dumps(self.document()))
        os.rename(temporary, directory / f"{self.namespace}.{self.name}.json")
