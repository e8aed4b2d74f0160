"""ResourceClaim manifests with their allocation, as the scheduler leaves them."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Share:
    """One allocation result: `memory` and `cores` as quantities, None where the claim omits them."""

    request: str
    device: str
    cores: str | None = "50"
    memory: str | None = "8Gi"
    share_id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A ResourceClaim that is allocated."""

    name: str
    shares: tuple[Share, ...]
    namespace: str = "research"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    pool: str = "node-a"

    def document(self) -> dict[str, Any]:
        results = [
            {
                "request": s.request,
                "driver": "manager.nvidia.com",
                "pool": self.pool,
                "device": s.device,
                "shareID": s.share_id,
                "consumedCapacity": {k: v for k, v in (("cores", s.cores), ("memory", s.memory)) if v is not None},
            }
            for s in self.shares
        ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "spec": {"devices": {"requests": [{"name": s.request} for s in self.shares]}},
            "status": {"allocation": {"devices": {"results": results}}},
        }

    def write(self, directory: Path) -> None:
        """The manifest is in `directory`, whole."""
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{self.name}"
        temporary.write_text(json.dumps(self.document()))
        os.rename(temporary, directory / f"{self.namespace}.{self.name}.json")
