"""One object from the API server, with the refusals of whoever prepares a claim: not now, or not until someone acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_dra.api_errors import ApiAway, ApiNotFound, ApiRefused
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_state.errors import NotReady, PreconditionFailed

# What RBAC allows, an API server that was just started refuses until it has read the roles.
_NOT_KNOWN = (401, 403)


async def read(api: KubeApi, path: str, *, what: str) -> Mapping[str, Any]:
    """The object at `path`, which messages call `what`.

    Raises:
        ApiNotFound: there is none, or the API server does not serve its kind.
        PreconditionFailed: the API server refused for good; someone must act.
        NotReady: the API server is away, or does not know us yet, as one that was just started; it will be back.
    """
    try:
        return await api.request("GET", path)
    except ApiNotFound:
        raise
    except ApiRefused as exc:
        refusal = NotReady if exc.status in _NOT_KNOWN else PreconditionFailed
        raise refusal(f"API server refused {what}: {exc.status} {exc.reason}") from exc
    except ApiAway as exc:
        raise NotReady(str(exc)) from exc
