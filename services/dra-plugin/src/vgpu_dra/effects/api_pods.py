"""Pods from the API server: reads only, one at a time. No watch: a node asks for the pods of a claim once, without NRI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from vgpu_dra.api_errors import ApiNotFound
from vgpu_dra.effects.api_reads import read
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state.claims import PodRef
from vgpu_state.errors import NotReady


class ApiPods:
    """Looks pods up by namespace and name."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def fetch_pod(self, pod: PodRef) -> Mapping[str, Any] | None:
        """The pod of that name as the API server has it; None where it says that there is none.

        Raises:
            PreconditionFailed: the API server refused for good; someone must act.
            NotReady: the API server is away, or does not know us yet, as one that was just started; it will be back.
        """
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
        try:
            return await read(self._api, path, what=f"pod {pod}")
        except ApiNotFound as exc:
            # Only in the API's own words: a pod that is taken for gone gets no partition.
            if exc.reason == f'pods "{pod.name}" not found':
                return None
            raise NotReady(f"the API server's answer is not about pod {pod}: {exc.status} {exc.reason}") from exc
