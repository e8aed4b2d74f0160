"""ResourceClaims with their allocation, and Pods, from a directory of manifests: the demo, tests, debugging on a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vgpu_state.claims import ClaimRef, PodRef
from vgpu_state.errors import MalformedInput, PreconditionFailed, StorageFailed

_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_BYTES = 1 << 20

_KINDS = ("ResourceClaim", "Pod")

_Documents = dict[tuple[str, str, str], Mapping[str, Any]]  # by kind, namespace and name


class ManifestClaims:
    """Looks claims and pods up by namespace and name in all manifests of `directory`; a changed file is read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, int], _Documents]] = {}

    def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The claim's manifest.

        Raises:
            PreconditionFailed: no file has it.
            MalformedInput: no readable file has it, and one is no YAML.
            StorageFailed: the directory cannot be read.
        """
        found = self._find("ResourceClaim", claim.namespace, claim.name)
        if found is None:
            raise PreconditionFailed(f"no ResourceClaim {claim.namespace}/{claim.name} in {self._directory} (--claims-from)")
        return found

    def fetch_pod(self, pod: PodRef) -> Mapping[str, Any] | None:
        """The manifest of the pod of that name; None where no file has it.

        Raises:
            MalformedInput: no readable file has it, and one is no YAML.
            StorageFailed: the directory cannot be read.
        """
        return self._find("Pod", pod.namespace, pod.name)

    def _find(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        unreadable: MalformedInput | None = None
        try:
            files = sorted(n for n in os.listdir(self._directory) if n.endswith(_SUFFIXES) and not n.startswith("."))
            for file in files:
                try:
                    documents = self._documents_in(file)
                except MalformedInput as exc:
                    unreadable = unreadable or exc  # it must not keep the claims of the other files from their pods
                    continue
                if (found := documents.get((kind, namespace, name))) is not None:
                    return found
        except OSError as exc:
            raise StorageFailed(action="read manifests from", path=str(self._directory), error=exc) from exc
        if unreadable is not None:
            raise unreadable
        return None

    def _documents_in(self, name: str) -> _Documents:
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

    async def fetch_pod(self, pod: PodRef) -> Mapping[str, Any] | None:
        return await asyncio.to_thread(self._manifests.fetch_pod, pod)


def _parse(path: Path) -> _Documents:
    found: _Documents = {}
    try:
        documents = list(yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise MalformedInput(f"{path} is no YAML: {exc}") from exc
    for doc in documents:
        if isinstance(doc, dict) and doc.get("kind") in _KINDS and isinstance(doc.get("metadata"), dict):
            metadata = doc["metadata"]
            found[doc["kind"], str(metadata.get("namespace", "default")), str(metadata.get("name", ""))] = doc
    return found
