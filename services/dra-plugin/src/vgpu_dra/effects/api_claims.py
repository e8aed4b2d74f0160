"""ResourceClaims from the API server: reads only, as plain dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from vgpu_dra.api_errors import ApiAway, ApiNotFound, ApiRefused
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import NotReady, PreconditionFailed


class ApiClaims:
    """Looks claims up by namespace and name."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The claim as the API server has it.

        Raises:
            PreconditionFailed: there is no such claim, or the API server refused; someone must act.
            NotReady: the API server is away; it will be back.
        """
        # Both come from kubelet as text; no slash of theirs may lead elsewhere.
        namespace, name = quote(claim.namespace, safe=""), quote(claim.name, safe="")
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        try:
            found: Mapping[str, Any] = await self._api.request("GET", path)
        except ApiNotFound as exc:
            raise PreconditionFailed(f"ResourceClaim {claim.namespace}/{claim.name} does not exist") from exc
        except ApiRefused as exc:
            reason = f"{exc.status} {exc.reason}"
            raise PreconditionFailed(f"API server refused ResourceClaim {claim.namespace}/{claim.name}: {reason}") from exc
        except ApiAway as exc:
            raise NotReady(str(exc)) from exc
        return found
