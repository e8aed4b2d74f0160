"""Kubernetes Events at the API server: writes only."""

from __future__ import annotations

from urllib.parse import quote

from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.event_documents import Create, Raise


class ApiEvents:
    """Creates Events and raises their counts. Raises what `KubeApi` raises."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def write(self, write: Create | Raise) -> None:
        # The namespace is a pod's or a claim's, as kubelet and the runtime told it.
        path = f"/api/v1/namespaces/{quote(write.namespace, safe='')}/events"
        match write:
            case Create(document=document):
                await self._api.request("POST", path, body=document)
            case Raise(name=name, document=document):
                await self._api.request("PATCH", f"{path}/{quote(name, safe='')}", body=document)
