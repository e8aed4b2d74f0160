"""What an API server refuses of a Pod's claims. Written from the API's source, without our own code.

Source: kubernetes pkg/apis/core/validation/validation.go: validatePodResourceClaims, validateResourceClaimNames.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def refusals(pod: dict[str, Any]) -> list[str]:
    """Why no API server has this pod; empty where it may."""
    spec, metadata = pod["spec"], pod["metadata"]
    containers = [(f"spec.{field}[{i}]", c) for field in ("initContainers", "containers") for i, c in _numbered(spec, field)]
    known = {entry.get("name") for _, entry in _numbered(spec, "resourceClaims")}
    return [
        *(f"metadata.{field}: Required value" for field in ("namespace", "name") if not metadata.get(field)),
        *(["metadata.uid: Invalid value"] if not _UUID.match(metadata.get("uid", "")) else []),
        *(["spec.containers: Required value"] if not spec.get("containers") else []),
        *_entry_refusals(spec),
        *_name_refusals(containers),
        *(refused for path, c in containers for refused in _claim_refusals(c, known, path=f"{path}.resources.claims")),
    ]


def _numbered(spec: dict[str, Any], field: str) -> Iterable[tuple[int, dict[str, Any]]]:
    return enumerate(spec.get(field, ()))


def _entry_refusals(spec: dict[str, Any]) -> Iterator[str]:
    yield from _name_refusals((f"spec.resourceClaims[{i}]", entry) for i, entry in _numbered(spec, "resourceClaims"))
    for i, entry in _numbered(spec, "resourceClaims"):
        if ("resourceClaimName" in entry) == ("resourceClaimTemplateName" in entry):
            yield f"spec.resourceClaims[{i}]: must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`"


def _name_refusals(named: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    seen: set[str] = set()
    for path, entry in named:
        name = entry.get("name", "")
        if not _LABEL.match(name) or name in seen:
            yield f"{path}.name: Invalid value, or a duplicate: {name}"
        seen.add(name)


def _claim_refusals(container: dict[str, Any], known: Container[Any], *, path: str) -> Iterator[str]:
    seen: set[str] = set()
    for i, claim in enumerate(container.get("resources", {}).get("claims", ())):
        name, request = claim.get("name", ""), claim.get("request", "")
        key = f"{name}/{request}" if request else name
        # Either the whole claim once, or each of its requests at most once.
        if key in seen or name in seen or (not request and any(one.startswith(f"{name}/") for one in seen)):
            yield f"{path}[{i}]: Duplicate value: {key}"
        if request and not _LABEL.match(request):
            yield f"{path}[{i}].request: Invalid value: {request}"
        if name not in known:
            yield f"{path}[{i}].name: Not found: must be one of the names in pod.spec.resourceClaims"
        seen.add(key)
