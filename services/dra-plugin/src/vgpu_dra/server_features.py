"""What the API server keeps of a slice, asked once for each API server that we meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import structlog

from vgpu_dra.policy import features
from vgpu_dra.policy.features import Features
from vgpu_dra.slice_documents import Document
from vgpu_state.ids import NodeName

_log = structlog.get_logger()


class FeaturesPort(Protocol):
    """What can be asked. Both raise ApiAway or ApiRefused."""

    async def version(self) -> tuple[int, int]: ...

    async def rehearse(self, document: Document) -> Document: ...


class ServerFeatures:
    """The features of the API server that was asked last. It may become another one: upgraded, or with other feature gates."""

    def __init__(self, api: FeaturesPort, *, node: NodeName) -> None:
        self._api = api
        self._node = node
        self._version: tuple[int, int] | None = None
        self._known: Features | None = None

    async def ask(self) -> tuple[Features, bool]:
        """The features, and whether they were found out anew: the API server is of another release, or was forgotten."""
        version = await self._api.version()
        if self._known is not None and version == self._version:
            return self._known, False
        found = features.judge_features(version, await self._api.rehearse(features.rehearsal(self._node, version=version)))
        if found != self._known:
            _log.info("API server", version=".".join(map(str, version)), counters=found.has_counters, taints=found.has_taints)
        self._version, self._known = version, found
        return found, True

    def forget(self) -> None:
        """Has the features found out anew: the API server may have been started again, with other gates."""
        self._version = None

    def lose_counters(self) -> None:
        """Takes the counters for dropped, until the API server is another one."""
        if self._known is not None:
            self._known = replace(self._known, has_counters=False)
