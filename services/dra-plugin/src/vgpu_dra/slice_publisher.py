"""The loop that keeps this node's ResourceSlices as the offer says: lists, writes what differs, watches for changes.

It publishes nothing before the GPUs are known for the first time, and deletes nothing when it ends: kubelet does that, after its
own grace period.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from vgpu_daemon import backoff
from vgpu_dra.api_errors import ApiAway, ApiConflict, ApiExpired, ApiRefused
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import slices
from vgpu_dra.policy.devices import Offer
from vgpu_dra.policy.features import Features
from vgpu_dra.server_features import FeaturesPort, ServerFeatures
from vgpu_dra.slice_documents import Delete, Document, Listed, StoredSlice, Write, differences
from vgpu_state.errors import NotReady
from vgpu_state.ids import NodeName

_log = structlog.get_logger()

_BOOKMARK = "BOOKMARK"
# An API server that was just started refuses what RBAC allows until it has read the roles; the fourth attempt is 4 to 7 s later.
_REFUSALS_OF_A_FAULT = 4
_SHOWN_FIELDS = 6
_COUNTERS_FORM = re.compile(r"(^|\.)(sharedCounters|consumesCounters)\b")


class SlicesPort(FeaturesPort, Protocol):
    """The API server's slices of this node. Every method raises ApiAway or ApiRefused."""

    async def node_uid(self) -> str: ...

    async def list(self) -> Listed: ...

    def watch(self, resource_version: str, *, timeout_s: float) -> AsyncGenerator[tuple[str, str], None]: ...

    async def apply(self, write: Write) -> StoredSlice | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the publisher waits, in seconds.

    `settle_s` gathers the events of one change, and doubles up to `calm_s` while our writes are undone again and again (kubelet
    clears our slices at its start; a second writer would do so for ever). `recheck_s` after a write the pool is listed once more,
    since an event may have been missed; `poll_s` is the same without any write. `watch_s` is when the API server ends a watch.
    `refused_s` is the longest pause between attempts that are refused, which only a person can change. `chance`, from 0 to 1, is
    drawn for each of them.
    """

    settle_s: float = 1.0
    calm_s: float = 30.0
    recheck_s: float = 60.0
    poll_s: float = 600.0
    watch_s: float = 300.0
    retry_s: float = 1.0
    refused_s: float = 300.0
    chance: Callable[[], float] = random.random


class _CountersDropped(Exception):
    """Raised inside when the API server stored a slice without its counters, though it said that it keeps them."""


class SlicePublisher:
    """Publishes one pool, named after the node. `fault` is the sentence that says what a person must mend, or None.

    `offer` says what is offered to an API server with such features; it raises NotReady while the GPUs are not known.
    """

    def __init__(
        self,
        api: SlicesPort,
        offer: Callable[[Features], Offer],
        metrics: Metrics,
        *,
        node: NodeName,
        pace: Pace = Pace(),
    ) -> None:
        self._api = api
        self._offer = offer
        self._features = ServerFeatures(api, node=node)
        self._metrics = metrics
        self._node = node
        self._pace = pace
        self._accepted: dict[str, Document] = {}
        self._withheld: tuple[str, ...] = ()
        self._failure: str | None = None
        self._refusals = 0
        self._settle_s = pace.settle_s
        self._recheck_at: float | None = None
        self._is_stale = False
        self._patience: asyncio.Timeout | None = None
        self.fault: str | None = None

    def offer_changed(self) -> None:
        """Has the loop look at once, whatever it waits for. To be called on the event loop."""
        self._is_stale = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def serve(self) -> None:
        """Publishes, until cancelled."""
        away, refused = self._retries(backoff.LONGEST_S), self._retries(self._pace.refused_s)
        while True:
            self._is_stale = False
            try:
                await self._publish_and_watch()
            except NotReady:
                await self._pause(self._pace.poll_s)  # the GPUs are not known yet; `offer_changed` ends it
            except (ApiConflict, ApiExpired, _CountersDropped) as exc:
                _log.info("ResourceSlices are looked at anew", reason=str(exc))
                await self._pause(next(away))
            except ApiAway as exc:
                self._note_failure("away", exc)
                await self._pause(next(away))
            except ApiRefused as exc:
                self._note_failure("refused", exc)
                self._refusals += 1
                if self._refusals >= _REFUSALS_OF_A_FAULT:
                    self.fault = f"ResourceSlices are not published: {exc}"
                await self._pause(next(refused))
            else:
                away, refused = self._retries(backoff.LONGEST_S), self._retries(self._pace.refused_s)

    async def _publish_and_watch(self) -> None:
        try:
            version, wrote = await self._look()
        except ApiAway:
            # Not where a watch breaks off, which it does for lesser reasons than an API server that is started again.
            self._features.forget()
            raise
        self.fault = self._failure = None
        self._refusals = 0
        await self._until_change(version, within_s=self._until_next_look(wrote=wrote))

    async def _look(self) -> tuple[str, bool]:
        """Writes what differs; the version of the list it was held against, and whether there was anything."""
        features, is_new = await self._features.ask()
        if is_new:
            self._accepted = {}
        offer = self._offer(features)
        self._note_withheld(offer.withheld)
        owner = slices.PoolOwner(node=self._node, node_uid=await self._api.node_uid())
        listed = await self._api.list()
        wrote = await self._publish(slices.contents(offer.gpus, offer.counter_sets), listed, owner)
        self._metrics.published_devices.set(offer.device_count)
        return listed.resource_version, wrote

    async def _publish(self, wishes: Sequence[Document], listed: Listed, owner: slices.PoolOwner) -> bool:
        """Writes what differs; whether there was anything."""
        keys = [_key(wish) for wish in wishes]
        self._accepted = {key: self._accepted[key] for key in keys if key in self._accepted}
        settled = [self._accepted.get(key, wish) for key, wish in zip(keys, wishes, strict=True)]
        plan = slices.plan_pool(settled, stored=listed.slices, owner=owner)
        key_of = {slices.generate_name(i, self._node): key for i, key in enumerate(keys)}
        for write in plan.writes:
            self._metrics.slice_writes.labels(type(write).__name__.lower()).inc()
            answer = await self._api.apply(write)
            if answer is not None and not isinstance(write, Delete):
                self._compare(write.document["spec"], answer, key=key_of[write.document["metadata"]["generateName"]])
        if plan.writes:
            _log.info("ResourceSlices written", pool=self._node, generation=plan.generation, writes=len(plan.writes))
        return bool(plan.writes)

    def _compare(self, sent: Document, answer: StoredSlice, *, key: str) -> None:
        """Takes what the API server made of the wish `key` for what we wish from then on, or both would write for ever."""
        dropped = differences(sent, answer.spec)
        if not dropped:
            return
        if any(_COUNTERS_FORM.search(path) for path in dropped):
            # Of two API servers side by side, in the middle of an upgrade, the other was asked. The budgets are written first,
            # so the pool is not complete yet, and without them it never is.
            self._features.lose_counters()
            self._metrics.slice_failures.labels("dropped").inc()
            raise _CountersDropped("the API server dropped their counters")
        self._accepted[key] = slices.content(answer.spec)
        self._metrics.slice_failures.labels("dropped").inc()
        _log.error(
            "the API server stored other ResourceSlice fields than were written",
            fields=list(dropped[:_SHOWN_FIELDS]),
            count=len(dropped),
            reason="a feature gate is probably off: shares of a device need DRAConsumableCapacity",
        )

    def _until_next_look(self, *, wrote: bool) -> float:
        now = asyncio.get_running_loop().time()
        if wrote:
            self._settle_s = min(self._settle_s * 2, self._pace.calm_s)
            self._recheck_at = now + self._pace.recheck_s
        elif self._recheck_at is not None and now >= self._recheck_at:
            self._settle_s = self._pace.settle_s
            self._recheck_at = None
        return self._jittered(self._pace.poll_s) if self._recheck_at is None else self._recheck_at - now

    async def _until_change(self, version: str, *, within_s: float) -> None:
        """Returns when the slices or the offer changed, or the time is over."""
        async with self._at_most(within_s):
            is_changed = False
            while not is_changed:
                async with aclosing(self._api.watch(version, timeout_s=self._jittered(self._pace.watch_s))) as events:
                    async for kind, seen in events:
                        version = seen
                        if kind != _BOOKMARK:
                            is_changed = True
                            break
                # What belongs to the same change comes along; and a server that ends each watch at once is not asked at once.
                await asyncio.sleep(self._settle_s)

    async def _pause(self, seconds: float) -> None:
        async with self._at_most(self._jittered(seconds)):
            await asyncio.Event().wait()

    @asynccontextmanager
    async def _at_most(self, seconds: float) -> AsyncIterator[None]:
        """The block, ended after `seconds` or by `offer_changed`, also by one that came since the offer was read."""
        try:
            async with asyncio.timeout(0 if self._is_stale else seconds) as self._patience:
                yield
        except TimeoutError:
            pass
        finally:
            self._patience = None

    def _retries(self, longest_s: float) -> Iterator[float]:
        return backoff.delays_s(first_s=self._pace.retry_s, longest_s=longest_s)

    def _jittered(self, seconds: float) -> float:
        return backoff.jittered_s(seconds, chance=self._pace.chance())

    def _note_failure(self, kind: str, failure: Exception) -> None:
        self._metrics.slice_failures.labels(kind).inc()
        if str(failure) != self._failure:
            _log.warning("ResourceSlices not published", reason=str(failure))
        self._failure = str(failure)

    def _note_withheld(self, withheld: tuple[str, ...]) -> None:
        if withheld and withheld != self._withheld:
            _log.error("devices are not published", reason="; ".join(withheld))
        self._withheld = withheld


def _key(content: Document) -> str:
    return json.dumps(content, sort_keys=True)
