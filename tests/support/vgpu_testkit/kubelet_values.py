"""What goes into and comes out of the stand-in kubelet: frozen values, verdicts and refusals.

Knows no sockets and no protobuf. Wordings follow kubelet's own (reference: cm/dra/manager.go and the plugin manager's
operation_generator.go), so that a test reads what an operator would find in kubelet's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from grpclib.const import Status

_HEALTH_LEASE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A ResourceClaim as kubelet names it to a plugin."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One prepared device that kubelet accepted. `request_names` empty means every request of the claim."""

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What a plugin said last of one device: HEALTHY, UNHEALTHY or UNKNOWN, when, and for how many seconds it holds."""

    word: str
    message: str
    last_updated_s: int
    timeout_s: int

    def word_at(self, now_s: float) -> str:
        """The word, as long as it holds. Source: kubelet pkg/kubelet/cm/dra/healthinfo.go."""
        lease_s = self.timeout_s or _HEALTH_LEASE_S
        return self.word if now_s - self.last_updated_s <= lease_s else "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a plugin said of itself in GetInfo, `endpoint` already replaced by the socket when it was empty."""

    plugin_type: str
    name: str
    endpoint: str
    supported_versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A plugin that is registered: NotifyRegistrationStatus(true) was answered without an error."""

    socket: str
    driver: str
    endpoint: str
    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One registration attempt that failed, with the reason kubelet logs and, where it can, tells the plugin."""

    socket: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deregistered:
    """A registered plugin that is forgotten because its registration socket was removed or re-created."""

    socket: str
    driver: str
    endpoint: str


Registration = Accepted | Refused | Deregistered


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """kubelet's intervals and deadlines, all in seconds.

    `poll_s` stands for inotify and the 1 s reconciler, and `reconnect_s` for grpc-go's 1 s base delay: both are shorter
    than the real ones, since a plugin can observe neither but every test would wait for both.
    """

    poll_s: float = 0.02
    dial_s: float = 10.0
    get_info_s: float = 1.0
    notify_s: float = 5.0
    call_s: float = 45.0
    backoff_s: float = 0.5
    backoff_max_s: float = 122.0
    connect_s: float = 20.0
    reconnect_s: float = 0.1
    health_retry_s: float = 5.0


class KubeletRefusal(Exception):
    """Raised when kubelet does not accept what a plugin said or did; `reason` is kubelet's wording."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EndpointTaken(KubeletRefusal):
    """Raised when a plugin offers an endpoint that another instance of its driver has registered.

    kubelet finds this after it noted the socket as handled and never tries that socket again; only re-creating it
    helps (reference: kubernetes#133725).
    """


class CallFailed(KubeletRefusal):
    """Raised when an RPC to the plugin ends with a status other than OK, a deadline or a lost connection."""

    def __init__(self, method: str, status: Status, description: str) -> None:
        code = "".join(word.capitalize() for word in status.name.split("_"))
        super().__init__(f"{method}: rpc error: code = {code} desc = {description}")
        self.method = method
        self.status = status
        self.description = description


class Changes:
    """A bell that is rung whenever anything observable changed; waiters look again."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._rung.wait()
