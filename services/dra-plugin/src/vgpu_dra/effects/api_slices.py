"""The ResourceSlices of this driver on this node, at the API server."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from vgpu_dra import inventory
from vgpu_dra.api_errors import ApiAway, ApiNotFound
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.slice_documents import Create, Delete, Document, Listed, Replace, StoredSlice, Write, parse_list, parse_slice
from vgpu_state import jsonshape
from vgpu_state.ids import NodeName
from vgpu_state.jsonshape import ShapeError

_T = TypeVar("_T")

_NUMBER_FORM = re.compile(r"(\d{1,4})\+?\Z", re.ASCII)  # some vendors mark their patches by a plus
_PATH = "/apis/resource.k8s.io/v1/resourceslices"


class ApiSlices:
    """Lists, watches and writes the slices of one node. Raises what `KubeApi` raises."""

    def __init__(self, api: KubeApi, node: NodeName) -> None:
        self._api = api
        self._node = node
        self._selector = {"fieldSelector": f"spec.driver={inventory.DRIVER},spec.nodeName={node}"}

    async def node_uid(self) -> str:
        node = await self._api.request("GET", f"/api/v1/nodes/{self._node}")
        return _parsed(node, lambda document: jsonshape.text(jsonshape.mapping(document, "metadata"), "uid"))

    async def version(self) -> tuple[int, int]:
        """The API server's release, such as (1, 37)."""
        return _parsed(await self._api.request("GET", "/version"), _version)

    async def rehearse(self, document: Document) -> Document:
        """The spec that the API server would make of a slice to create; nothing is stored."""
        answer = await self._api.request("POST", _PATH, query={"dryRun": "All"}, body=document)
        return _parsed(answer, lambda document: jsonshape.mapping(document, "spec"))

    async def list(self) -> Listed:
        """All slices as they are now, not as some cache had them."""
        return _parsed(await self._api.request("GET", _PATH, query=self._selector), parse_list)

    async def watch(self, resource_version: str, *, timeout_s: float) -> AsyncGenerator[tuple[str, str], None]:
        """Type and resourceVersion of each event since `resource_version`; BOOKMARK says only how far it has come."""
        query = {**self._selector, "resourceVersion": resource_version, "allowWatchBookmarks": "true"}
        async with aclosing(self._api.watch(_PATH, query=query, timeout_s=timeout_s)) as events:
            async for event in events:
                yield _parsed(event, _kind_and_version)

    async def apply(self, write: Write) -> StoredSlice | None:
        """Writes; the slice as the API server has it then, or None when it is gone."""
        match write:
            case Create(document=document):
                return _parsed(await self._api.request("POST", _PATH, body=document), parse_slice)
            case Replace(stored=stored, document=document):
                return _parsed(await self._api.request("PUT", f"{_PATH}/{stored.name}", body=document), parse_slice)
            case Delete(stored=stored):
                await self._delete(stored)
                return None

    async def _delete(self, stored: StoredSlice) -> None:
        preconditions = {"uid": stored.uid, "resourceVersion": stored.resource_version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            await self._api.request("DELETE", f"{_PATH}/{stored.name}", body=options)
        except ApiNotFound:
            return  # someone was faster


def _kind_and_version(event: Document) -> tuple[str, str]:
    metadata = jsonshape.mapping(jsonshape.mapping(event, "object"), "metadata")
    return jsonshape.text(event, "type"), jsonshape.text(metadata, "resourceVersion")


def _version(document: Document) -> tuple[int, int]:
    major, minor = (_NUMBER_FORM.match(jsonshape.text(document, field)) for field in ("major", "minor"))
    if major is None or minor is None:
        raise ShapeError(f"fields major and minor are {document['major']!r} and {document['minor']!r}; expected numbers")
    return int(major[1]), int(minor[1])


def _parsed(document: Document, parse: Callable[[Document], _T]) -> _T:
    try:
        return parse(document)
    except ShapeError as exc:
        raise ApiAway(f"an answer about slices cannot be read: {exc}; it came from something else than an API server") from exc
