"""Events, ResourceClaims and Pods of the stand-in API server: what it refuses of the ones, how it denies the others.

Written from the API's documentation, without our own documents: it is what those are held against.

Source: kubernetes pkg/apis/core/validation/events.go, pkg/apis/core/validation/validation.go (names), apimachinery api/errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from vgpu_testkit import api_pod_rules

EVENT = "/api/v1/namespaces/{namespace}/events"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
POD = "/api/v1/namespaces/{namespace}/pods/{name}"

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_REASON = re.compile(r"[A-Z][A-Za-z]{0,127}\Z")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
_CLUSTER_SCOPED = ("Node",)

Answer = Callable[[web.Request, Any], web.Response]
Route = tuple[str, str, str, Answer]


class EventStore:
    """core/v1 Events by namespace and name. `missing_namespaces` are those that are gone."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], dict[str, Any]] = {}
        self.missing_namespaces: set[str] = set()

    def routes(self) -> Iterator[Route]:
        yield "create event", "POST", EVENT, self._create
        yield "patch event", "PATCH", EVENT + "/{name}", self._patch

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The Events about objects of one kind, oldest first."""
        return [event for event in self.stored.values() if event["involvedObject"]["kind"] == kind]

    def _create(self, request: web.Request, body: Any) -> web.Response:
        namespace = request.match_info["namespace"]
        if namespace in self.missing_namespaces:
            return refusal(404, f'namespaces "{namespace}" not found')
        if refused := _event_refusals(namespace, body):
            return refusal(422, f"Event is invalid: {'; '.join(refused)}")
        key = namespace, body["metadata"]["name"]
        if key in self.stored:
            return refusal(409, f'events "{key[1]}" already exists')
        self.stored[key] = body
        return web.json_response(body, status=201)

    def _patch(self, request: web.Request, body: Any) -> web.Response:
        if request.headers["Content-Type"] != "application/merge-patch+json":
            return refusal(415, "the body of the request was in an unknown format")
        key = request.match_info["namespace"], request.match_info["name"]
        if key not in self.stored:
            return refusal(404, f'events "{key[1]}" not found')
        patched = {**self.stored[key], **body}
        if refused := _event_refusals(key[0], patched):
            return refusal(422, f"Event is invalid: {'; '.join(refused)}")
        self.stored[key] = patched
        return web.json_response(patched)


class ObjectStore:
    """Objects of one kind by namespace and name, to be read one by one. `is_served` False: the API group is not there.

    `resource` is what the kind is called in a denial, `refusals` say why an API server would not have an object.
    """

    def __init__(
        self, path: str, *, kind: str, resource: str, refusals: Callable[[dict[str, Any]], list[str]] = lambda _: []
    ) -> None:
        self.stored: dict[tuple[str, str], dict[str, Any]] = {}
        self.is_served = True
        self._path = path
        self._kind = kind
        self._resource = resource
        self._refusals = refusals

    def routes(self) -> Iterator[Route]:
        yield f"get {self._kind}", "GET", self._path, self._get

    def put(self, document: dict[str, Any]) -> None:
        if refused := self._refusals(document):
            raise ValueError(f"{self._kind} is invalid: {'; '.join(refused)}")
        about = document["metadata"]
        self.stored[about["namespace"], about["name"]] = document

    def _get(self, request: web.Request, _: Any) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not self.is_served:
            return web.Response(status=404, text="404 page not found\n")
        found = self.stored.get((namespace, name))
        if found is None:
            return refusal(404, f'{self._resource} "{name}" not found')
        return web.json_response(found)


def claim_store() -> ObjectStore:
    return ObjectStore(CLAIM, kind="claim", resource="resourceclaims.resource.k8s.io")


def pod_store() -> ObjectStore:
    return ObjectStore(POD, kind="pod", resource="pods", refusals=api_pod_rules.refusals)


def refusal(code: int, message: str) -> web.Response:
    """The Status object with which an API server says no."""
    return web.json_response({"kind": "Status", "apiVersion": "v1", "code": code, "message": message}, status=code)


def _event_refusals(namespace: str, event: dict[str, Any]) -> list[str]:
    about = event.get("involvedObject") or {}
    expected = "default" if about.get("kind") in _CLUSTER_SCOPED else about.get("namespace")
    name = event.get("metadata", {}).get("name", "")
    rules = {
        "metadata.name": len(name) <= 253 and _SUBDOMAIN.match(name),
        "metadata.namespace": event.get("metadata", {}).get("namespace") == namespace,
        "involvedObject.namespace": namespace == expected,
        "involvedObject": all(about.get(field) for field in ("apiVersion", "kind", "name", "uid")),
        "reason": _REASON.match(event.get("reason", "")),
        "message": 0 < len(event.get("message", "").encode()) <= 1024,
        "type": event.get("type") in ("Normal", "Warning"),
        "source": event.get("source", {}).get("component") and event.get("source", {}).get("host"),
        "reportingComponent": event.get("reportingComponent"),
        "reportingInstance": 0 < len(event.get("reportingInstance", "")) <= 128,
        "count": isinstance(event.get("count"), int) and event["count"] > 0,
        "timestamps": all(_MOMENT.match(event.get(field, "")) for field in ("firstTimestamp", "lastTimestamp")),
    }
    return [f"{field}: Invalid value" for field, holds in rules.items() if not holds]
