"""A Pod as the API server or a manifest has it → which of its containers refer to a claim, and to what of it.

Source: core/v1, Pod.spec.resourceClaims, Pod.status.resourceClaimStatuses and Pod.status.extendedResourceClaimStatus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vgpu_state import ids, jsonshape
from vgpu_state.claims import ClaimRef, ContainerKind, PodRef
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import ContainerName, RequestName
from vgpu_state.jsonshape import ShapeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerContainer:
    """A container that refers to the claim.

    `position` is its place among the init containers, 0 for an app container. `references` are main requests, each once, in
    order of name; None, which stands first, is the whole claim. `other_claims` are the names of the further ResourceClaims that
    it refers to, in order.
    """

    name: ContainerName
    kind: ContainerKind
    position: int
    references: tuple[RequestName | None, ...]
    other_claims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPod:
    """A pod and those of its containers that refer to the claim, in the pod's order: init containers first."""

    pod: PodRef
    containers: tuple[ConsumerContainer, ...]


def consumer_pod(doc: Mapping[str, Any], claim: ClaimRef) -> ConsumerPod:
    """Who of the pod refers to the claim, by its name in the pod's namespace.

    An entry of the pod that has no claim yet is nobody's.

    Raises:
        MalformedInput: a field is missing or not of its form; the message has its path.
    """
    pod = _pod(doc, claim)
    root = _At(pod=pod, path="", doc=doc)
    spec, status = root.inner("spec"), root.inner("status")
    claims, extended = _claims(spec, status), _extended(status)
    containers = [
        *((at, _init_kind(at), i) for i, at in enumerate(spec.entries("initContainers"))),
        *((at, ContainerKind.APP, 0) for at in spec.entries("containers")),
    ]
    found: list[ConsumerContainer] = []
    for at, kind, position in containers:
        name = at.parsed("name", ids.parse_container_name)
        mentions = _mentions([*extended.get(name, ()), *_referred(at, claims)])
        if references := mentions.pop(claim.name, None):
            found.append(
                ConsumerContainer(
                    name=name,
                    kind=kind,
                    position=position,
                    references=tuple(sorted(references, key=lambda request: request or "")),
                    other_claims=tuple(sorted(mentions)),
                )
            )
    return ConsumerPod(pod=pod, containers=tuple(found))


def has_ended(doc: Mapping[str, Any]) -> bool:
    """Whether the pod runs no container any more, and never will. Its claims are still reserved for it for a moment.

    Source: Pod.status.phase; kubelet reports an end only after the last container stopped.
    """
    status = doc.get("status")
    return isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """An object of a pod and its path there. Lists and objects that are absent are empty."""

    pod: PodRef
    path: str
    doc: Mapping[str, Any]

    def text(self, field: str) -> str:
        return self._read(lambda: jsonshape.text(self.doc, field))

    def text_or_none(self, field: str) -> str | None:
        return self.text(field) or None if self.doc.get(field) is not None else None

    def parsed(self, field: str, parse: Callable[[str], T]) -> T:
        return self._read(lambda: parse(jsonshape.text(self.doc, field)))

    def inner(self, field: str) -> _At:
        doc = self._read(lambda: jsonshape.mapping(self.doc, field)) if self.doc.get(field) is not None else {}
        return _At(pod=self.pod, path=self._below(field), doc=doc)

    def entries(self, field: str) -> list[_At]:
        docs = self._read(lambda: jsonshape.mappings(self.doc, field)) if self.doc.get(field) is not None else []
        return [_At(pod=self.pod, path=f"{self._below(field)}[{i}]", doc=doc) for i, doc in enumerate(docs)]

    def _below(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (ShapeError, MalformedInput) as exc:
            raise MalformedInput(f"{f'pod {self.pod} {self.path}'.rstrip()}: {exc}") from exc


_Mention = tuple[str, RequestName | None]  # a ResourceClaim by name, and what of it


def _pod(doc: Mapping[str, Any], claim: ClaimRef) -> PodRef:
    try:
        metadata = jsonshape.mapping(doc, "metadata")
        namespace, name = jsonshape.text(metadata, "namespace"), jsonshape.text(metadata, "name")
        return PodRef(uid=ids.parse_pod_uid(jsonshape.text(metadata, "uid")), namespace=namespace, name=name)
    except (ShapeError, MalformedInput) as exc:
        raise MalformedInput(f"metadata of a pod that claim {claim} is reserved for: {exc}") from exc


def _claims(spec: _At, status: _At) -> dict[str, str]:
    """The ResourceClaims by the names that the pod's containers know them by."""
    # A template that needed no claim has a status without a name.
    made = {at.text("name"): at.text_or_none("resourceClaimName") for at in status.entries("resourceClaimStatuses")}
    named = {at.text("name"): at.text_or_none("resourceClaimName") for at in spec.entries("resourceClaims")}
    return {entry: claim for entry, own in named.items() if (claim := own or made.get(entry)) is not None}


def _extended(status: _At) -> dict[ContainerName, list[_Mention]]:
    """What of the claim that the scheduler made for the pod's extended resources is each container's."""
    found: dict[ContainerName, list[_Mention]] = defaultdict(list)
    made = status.inner("extendedResourceClaimStatus")
    for at in made.entries("requestMappings"):
        container = at.parsed("containerName", ids.parse_container_name)
        found[container].append((made.text("resourceClaimName"), at.parsed("requestName", _main_request)))
    return found


def _init_kind(at: _At) -> ContainerKind:
    return ContainerKind.SIDECAR if at.text_or_none("restartPolicy") == "Always" else ContainerKind.INIT


def _referred(container: _At, claims: Mapping[str, str]) -> list[_Mention]:
    return [
        (claim, at.parsed("request", _main_request) if at.text_or_none("request") else None)
        for at in container.inner("resources").entries("claims")
        if (claim := claims.get(at.text("name"))) is not None
    ]


def _mentions(mentions: Iterable[_Mention]) -> dict[str, set[RequestName | None]]:
    by_claim: dict[str, set[RequestName | None]] = defaultdict(set)
    for claim, request in mentions:
        by_claim[claim].add(request)
    return by_claim


def _main_request(text: str) -> RequestName:
    return ids.main_request(ids.parse_request_name(text))
