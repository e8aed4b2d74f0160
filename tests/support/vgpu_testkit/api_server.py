"""An API server for ResourceSlices in the test's own process, as strict as the real one where a driver meets it.

resourceVersions, uids and generateName; conflicts and preconditions; field selectors; watches with bookmarks, time limits and an
end of memory (410); dry runs; what `api_slice_rules` refuses and `api_slice_gates` drops. It also has Nodes, and what is in
`api_objects`. It knows no authentication.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import string
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from vgpu_testkit import api_slice_rules
from vgpu_testkit.api_objects import EventStore, claim_store, pod_store, refusal
from vgpu_testkit.api_slice_gates import Gates

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # those of names.SimpleNameGenerator
_MAX_PREFIX = 58


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the audit log has it, but that one which stores nothing has the verb "rehearse"."""

    verb: str
    path: str
    status: int


class ApiServer:
    """The store and its HTTP routes; the methods are what a test does behind the driver's back."""

    def __init__(self, *, node: str, gates: Gates | None = None) -> None:
        self.nodes = {node: str(uuid.uuid4())}
        self.gates = gates or Gates()
        self.requests: list[Request] = []
        self.watches = 0
        self.events = EventStore()
        self.claims = claim_store()
        self.pods = pod_store()
        self._objects: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._version = 100
        self._oldest = 100
        self._changed = asyncio.Event()
        self._faults: list[tuple[str, int]] = []

    @property
    def slices(self) -> list[dict[str, Any]]:
        """All slices, by name, as they are stored."""
        return [copy.deepcopy(o) for _, o in sorted(self._objects.items())]

    def count(self, *verbs: str) -> int:
        """How many requests of these verbs were answered with success."""
        return sum(r.verb in verbs and r.status < 300 for r in self.requests)

    @property
    def writes(self) -> int:
        return self.count("create", "update", "delete")

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """Returns when `condition` holds; it is asked after every request."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        """Stores a slice as somebody else would."""
        return self._store(copy.deepcopy(document), kind="ADDED")

    def change(self, name: str, mutate: Callable[[dict[str, Any]], None]) -> None:
        """Changes a slice as somebody else would."""
        changed = copy.deepcopy(self._objects[name])
        mutate(changed)
        self._store(changed, kind="MODIFIED")

    def wipe(self) -> None:
        """Deletes all slices, as kubelet does at its start."""
        for name in list(self._objects):
            self._remove(name)

    def lose_silently(self) -> None:
        """Deletes all slices without an event, as a watch misses one that it should have seen."""
        self._objects.clear()

    def forget_history(self) -> None:
        """Ends the memory of changes: a watch from an earlier version is answered with 410, and those under way end."""
        self._oldest = self._version = self._version + 1
        self._history.clear()
        self._wake()

    def fail_next(self, verb: str, status: int, *, times: int = 1) -> None:
        """Answers the next requests of this verb with an error; 0 closes the connection without an answer."""
        self._faults += [(verb, status)] * times

    def heal(self) -> None:
        self._faults.clear()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves on a port of its own; its address."""
        app = web.Application()
        self.add_routes(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/version", self._verb("version", self._get_version))
        app.router.add_get("/api/v1/nodes/{name}", self._verb("get", self._get_node))
        app.router.add_get(SLICES, self._list_or_watch)
        app.router.add_post(SLICES, self._verb("create", self._create))
        app.router.add_put(SLICES + "/{name}", self._verb("update", self._update))
        app.router.add_delete(SLICES + "/{name}", self._verb("delete", self._delete))
        for verb, method, path, answer in (*self.events.routes(), *self.claims.routes(), *self.pods.routes()):
            app.router.add_route(method, path, self._verb(verb, answer))

    def _verb(self, verb: str, answer: Callable[[web.Request, Any], web.Response]) -> Any:
        async def serve(request: web.Request) -> web.Response:
            body = json.loads(await request.text() or "null")
            named = "rehearse" if request.query.get("dryRun") == "All" else verb
            response = self._fault(named, request) or answer(request, body)
            self.requests.append(Request(verb=named, path=request.path, status=response.status))
            return response

        return serve

    def _fault(self, verb: str, request: web.Request) -> web.Response | None:
        status = next((s for v, s in self._faults if v == verb), None)
        if status is None:
            return None
        self._faults.remove((verb, status))
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            status = 503
        return refusal(status, "an error that the test wanted")

    def _get_version(self, _: web.Request, __: Any) -> web.Response:
        major, minor = self.gates.release
        return web.json_response({"major": str(major), "minor": str(minor), "gitVersion": f"v{major}.{minor}.0"})

    def _get_node(self, request: web.Request, _: Any) -> web.Response:
        name = request.match_info["name"]
        if name not in self.nodes:
            return refusal(404, f'nodes "{name}" not found')
        return web.json_response({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": self.nodes[name]}})

    def _create(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        metadata = body["metadata"]
        if not metadata.get("name"):
            suffix = "".join(random.choices(_NAME_CHARACTERS, k=5))
            metadata["name"] = metadata["generateName"][:_MAX_PREFIX] + suffix
        if set(metadata["name"]) - set(string.ascii_lowercase + string.digits + "-."):
            return refusal(422, f"metadata.name: Invalid value: {metadata['name']}")
        if metadata["name"] in self._objects:
            return refusal(409, f'resourceslices "{metadata["name"]}" already exists')
        if metadata.get("resourceVersion"):
            return refusal(400, "resourceVersion should not be set on objects to be created")
        return self._written(body, None, is_rehearsal=request.query.get("dryRun") == "All")

    def _update(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        old = self._objects.get(request.match_info["name"])
        if old is None:
            return refusal(404, "not found")
        then, now = body["metadata"], old["metadata"]
        if then.get("name") != now["name"]:
            return refusal(400, "the name of the object does not match the name on the URL")
        if then.get("uid", now["uid"]) != now["uid"]:
            return refusal(409, "Precondition failed: UID in precondition differs from UID in object meta")
        if then.get("resourceVersion") != now["resourceVersion"]:
            return refusal(409, "the object has been modified; please apply your changes to the latest version and try again")
        return self._written(body, old)

    def _written(self, body: dict[str, Any], old: dict[str, Any] | None, *, is_rehearsal: bool = False) -> web.Response:
        kept = self.gates.kept(body, old)
        refused = api_slice_rules.refusals(kept, release=self.gates.release)
        if old is not None:
            refused += api_slice_rules.immutable_refusals(old, kept)
        if refused:
            return refusal(422, f"ResourceSlice is invalid: {'; '.join(refused[:3])}")
        status = 201 if old is None else 200
        if is_rehearsal:
            return web.json_response(api_slice_rules.as_stored(kept), status=status)
        return web.json_response(self._store(kept, kind="ADDED" if old is None else "MODIFIED"), status=status)

    def _delete(self, request: web.Request, body: Any) -> web.Response:
        name = request.match_info["name"]
        if name not in self._objects:
            return refusal(404, f'resourceslices "{name}" not found')
        wanted, metadata = (body or {}).get("preconditions") or {}, self._objects[name]["metadata"]
        for field in ("uid", "resourceVersion"):
            if wanted.get(field, metadata[field]) != metadata[field]:
                return refusal(
                    409, f"Precondition failed: {field} in precondition: {wanted[field]}, in object: {metadata[field]}"
                )
        self._remove(name)
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        verb = "watch" if request.query.get("watch") == "true" else "list"
        fault = self._fault(verb, request)
        if fault is not None or verb == "list":
            response = fault or self._list(request.query.get("fieldSelector", ""))
            self.requests.append(Request(verb=verb, path=request.path, status=response.status))
            return response
        self.requests.append(Request(verb=verb, path=request.path, status=200))
        return await self._watch(request)

    def _list(self, selector: str) -> web.Response:
        items = [{k: v for k, v in o.items() if k not in ("apiVersion", "kind")} for o in self.slices if _selects(selector, o)]
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"kind": "ResourceSliceList", "apiVersion": "x", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen, selector = int(request.query["resourceVersion"]), request.query.get("fieldSelector", "")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                while seen >= self._oldest:
                    changed = self._changed  # that of now: a change while an event is sent sets it
                    for version, event in [e for e in self._history if e[0] > seen]:
                        if _selects(selector, event["object"]):
                            await _send(response, event)
                        seen = version
                    await changed.wait()
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {seen}"}
            await _send(response, {"type": "ERROR", "object": gone})
        except TimeoutError:
            metadata = {"resourceVersion": str(self._version)}
            await _send(response, {"type": "BOOKMARK", "object": {"kind": "ResourceSlice", "metadata": metadata}})
        finally:
            self.watches -= 1
        return response

    def _store(self, document: dict[str, Any], *, kind: str) -> dict[str, Any]:
        document = api_slice_rules.as_stored(document)
        metadata = document["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        if document == self._objects.get(metadata["name"]):
            return document  # a write that changes nothing is none
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[metadata["name"]] = document
        self._note(kind, document)
        return document

    def _remove(self, name: str) -> None:
        self._version += 1
        document = self._objects.pop(name)
        document["metadata"]["resourceVersion"] = str(self._version)
        self._note("DELETED", document)

    def _note(self, kind: str, document: dict[str, Any]) -> None:
        self._history.append((self._version, {"type": kind, "object": copy.deepcopy(document)}))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


def _selects(selector: str, document: dict[str, Any]) -> bool:
    wanted = dict(term.split("=", 1) for term in selector.split(",") if term)
    return all(str(document["spec"].get(field.removeprefix("spec."), "")) == value for field, value in wanted.items())
