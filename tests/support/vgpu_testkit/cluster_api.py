"""A plain client of a Kubernetes API server for tests: objects are what JSON makes of them, calls block.

Knows URLs and errors. What our services use to talk to the API server is not this.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]

_CALL_S = 30.0
_POLL_S = 0.1


class ApiError(Exception):
    """Raised when the API server says no; carries its status code and its reason, as "NotFound"."""

    def __init__(self, status: int, answer: str) -> None:
        try:
            said = json.loads(answer)
        except json.JSONDecodeError:
            said = {}
        super().__init__(f"{status}: {said.get('message', answer.strip())}")
        self.status = status
        self.reason: str = said.get("reason", "")


class Api:
    """Calls to one API server on 127.0.0.1, each on a connection of its own: a killed server leaves nothing half open."""

    def __init__(self, port: int, *, authority: str, certificate: str, key: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=authority)
        self._context.load_cert_chain(certificate, key)

    def call(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> str:
        """The text of the answer.

        Raises:
            ApiError: the answer is not 2xx.
            OSError, http.client.HTTPException: there is no answer.
        """
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=_CALL_S)
        try:
            headers = {"Content-Type": content_type, "Accept": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise ApiError(response.status, text)
        return text

    def get(self, path: str) -> Object:
        """One object, or a list."""
        found: Object = json.loads(self.call("GET", path))
        return found

    def create(self, path: str, value: Object) -> Object:
        """Creates an object in the collection at `path`."""
        made: Object = json.loads(self.call("POST", path, value))
        return made

    def patch(self, path: str, value: Object) -> Object:
        """Merges `value` into the object at `path`."""
        changed: Object = json.loads(self.call("PATCH", path, value, content_type="application/merge-patch+json"))
        return changed

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Deletes the object at `path`; nothing where it is gone."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        try:
            self.call("DELETE", path + query)
        except ApiError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise

    def exists(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        try:
            self.call("GET", path)
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def log(self, namespace: str, pod: str, *, container: str | None = None) -> str:
        """What a container of a pod wrote, through kubelet."""
        query = f"?container={container}" if container else ""
        return self.call("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log{query}")

    def wait_for(self, path: str, holds: Callable[[Object], bool], *, timeout_s: float = 30.0) -> Object:
        """The object at `path`, once that holds of it.

        Raises:
            TimeoutError: it did not within `timeout_s`; with the object's status.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found: Object = {}
            try:
                found = self.get(path)
            except ApiError as error:
                if error.status != http.HTTPStatus.NOT_FOUND:
                    raise
            if found and holds(found):
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is not as expected after {timeout_s:g} s: {json.dumps(found.get('status'))}")
            time.sleep(_POLL_S)

    def events(self, namespace: str) -> Iterator[str]:
        """The events of a namespace as lines, the oldest first."""
        for event in self.get(f"/api/v1/namespaces/{namespace}/events")["items"]:
            about = event["involvedObject"]
            # Some of Kubernetes' own are about nothing that has a name.
            yield f"{about.get('kind')}/{about.get('name')} {event.get('reason')}: {event.get('message')}"
