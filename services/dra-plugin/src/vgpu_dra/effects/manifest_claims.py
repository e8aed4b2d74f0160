"""ResourceClaims from a directory of manifests that carry their allocation: the demo, tests, debugging on a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vgpu_state.claims import ClaimRef
from vgpu_state.errors import MalformedInput, PreconditionFailed, StorageFailed

_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_BYTES = 1 << 20

_Claims = dict[tuple[str, str], Mapping[str, Any]]


class ManifestClaims:
    """Looks a claim up by namespace and name in all manifests of `directory`; a changed file is read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, int], _Claims]] = {}

    def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The claim's manifest.

        Raises:
            PreconditionFailed: no file has it.
            MalformedInput: no readable file has it, and one is no YAML.
            StorageFailed: the directory cannot be read.
        """
        unreadable: MalformedInput | None = None
        try:
            names = sorted(n for n in os.listdir(self._directory) if n.endswith(_SUFFIXES) and not n.startswith("."))
            for name in names:
                try:
                    claims = self._claims_in(name)
                except MalformedInput as exc:
                    unreadable = unreadable or exc  # it must not keep the claims of the other files from their pods
                    continue
                if (found := claims.get((claim.namespace, claim.name))) is not None:
                    return found
        except OSError as exc:
            raise StorageFailed(action="read claims from", path=str(self._directory), error=exc) from exc
        if unreadable is not None:
            raise unreadable
        raise PreconditionFailed(f"no ResourceClaim {claim.namespace}/{claim.name} in {self._directory} (--claims-from)")

    def _claims_in(self, name: str) -> _Claims:
        path = self._directory / name
        status = path.stat()
        version = (status.st_mtime_ns, status.st_ino)
        known = self._read.get(name)
        if known is None or known[0] != version:
            if status.st_size > _MAX_BYTES:
                raise MalformedInput(f"{path} has {status.st_size} bytes; a manifest has at most {_MAX_BYTES}")
            known = self._read[name] = (version, _parse(path))
        return known[1]


class DirectorySource:
    """Manifests, looked up on a thread of their own: a slow disk delays one claim, not the loop."""

    def __init__(self, manifests: ManifestClaims) -> None:
        self._manifests = manifests

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        return await asyncio.to_thread(self._manifests.fetch, claim)


def _parse(path: Path) -> _Claims:
    claims: _Claims = {}
    try:
        documents = list(yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise MalformedInput(f"{path} is no YAML: {exc}") from exc
    for doc in documents:
        if isinstance(doc, dict) and doc.get("kind") == "ResourceClaim" and isinstance(doc.get("metadata"), dict):
            metadata = doc["metadata"]
            claims[str(metadata.get("namespace", "default")), str(metadata.get("name", ""))] = doc
    return claims
