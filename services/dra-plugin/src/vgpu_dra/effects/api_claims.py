"""ResourceClaims from the API server: reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from vgpu_dra.api_errors import ApiAway, ApiNotFound
from vgpu_dra.effects.api_reads import read
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state import jsonshape
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import PreconditionFailed
from vgpu_state.jsonshape import ShapeError


class ApiClaims:
    """Looks claims up by namespace and name."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The claim as the API server has it.

        Raises:
            PreconditionFailed: there is no such claim, or the API server refused for good; someone must act.
            NotReady: the API server is away, or does not know us yet, as one that was just started; it will be back.
        """
        try:
            return await read(self._api, _path(claim), what=f"ResourceClaim {claim.namespace}/{claim.name}")
        except ApiNotFound as exc:
            raise PreconditionFailed(f"ResourceClaim {claim.namespace}/{claim.name} does not exist") from exc

    async def has_vanished(self, claim: ClaimRef) -> bool:
        """Whether the API server says that there is no such claim any more, or one of that name with another uid.

        Raises:
            ApiAway: it is away, or its answer is not about this claim.
            ApiRefused: it said no.
        """
        try:
            found = await self._api.request("GET", _path(claim))
        except ApiNotFound as exc:
            # Only in the API's own words: a server that does not serve resource.k8s.io/v1 answers 404 for every claim.
            if exc.reason == f'resourceclaims.resource.k8s.io "{claim.name}" not found':
                return True
            raise ApiAway(f"API server does not serve ResourceClaims: {exc.reason}") from exc
        try:
            uid = jsonshape.text(jsonshape.mapping(found, "metadata"), "uid")
        except ShapeError as exc:
            raise ApiAway(f"the answer is no ResourceClaim: {exc}; it came from something else than an API server") from exc
        return uid != claim.uid


def _path(claim: ClaimRef) -> str:
    # Both come from kubelet as text; no slash of theirs may lead elsewhere.
    namespace, name = quote(claim.namespace, safe=""), quote(claim.name, safe="")
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
