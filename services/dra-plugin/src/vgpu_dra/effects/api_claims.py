"""ResourceClaims from the API server: reads only, as plain dicts.

kubernetes-asyncio costs most of a second and 50 MiB to import, so it is imported when the first claim is asked for, on a thread:
kubelet waits one second for GetInfo.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from vgpu_state.claims import ClaimRef
from vgpu_state.errors import NotReady, PreconditionFailed

_GROUP = "resource.k8s.io"
_VERSION = "v1"
_PLURAL = "resourceclaims"
_REQUEST_S = 10.0


class ApiClaims:
    """Reads claims with the pod's service account, or outside a cluster with `kubeconfig`, by default $KUBECONFIG."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None  # Any: the library is imported late
        self._connecting = asyncio.Lock()

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The claim as the API server has it.

        Raises:
            PreconditionFailed: there is no such claim.
            NotReady: the API server is away or refused; kubelet tries again.
        """
        await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config")
        from kubernetes_asyncio import client
        from kubernetes_asyncio.client.exceptions import ApiException

        try:
            api = client.CustomObjectsApi(await self._connected())
            found = await api.get_namespaced_custom_object(
                _GROUP, _VERSION, claim.namespace, _PLURAL, claim.name, _request_timeout=_REQUEST_S
            )
        except ApiException as exc:
            if exc.status == 404:
                raise PreconditionFailed(f"ResourceClaim {claim.namespace}/{claim.name} does not exist") from exc
            raise NotReady(f"API server refused ResourceClaim {claim.namespace}/{claim.name}: {exc.status} {exc.reason}") from exc
        except (OSError, TimeoutError, aiohttp.ClientError) as exc:
            raise NotReady(f"API server is away: {exc or type(exc).__name__}") from exc
        if not isinstance(found, dict):
            raise NotReady(f"API server answered no object for ResourceClaim {claim.namespace}/{claim.name}")
        return found

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Any:  # Any: kubernetes_asyncio's ApiClient
        from kubernetes_asyncio import client, config

        async with self._connecting:
            if self._client is None:
                configuration = client.Configuration()
                try:
                    config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
                except config.ConfigException:
                    try:
                        await config.load_kube_config(
                            self._kubeconfig and str(self._kubeconfig), client_configuration=configuration
                        )
                    except config.ConfigException as exc:
                        raise NotReady(f"no way to the API server: {exc} (in a cluster, or with KUBECONFIG)") from exc
                self._client = client.ApiClient(configuration)
        return self._client
