"""NVML's events, waited for on a thread of their own: NVML gives no descriptor, and a wait may hang for ever."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml
import structlog

from vgpu_dra.effects.nvml_library import NvmlLibrary, text
from vgpu_dra.readings import Event, EventKind
from vgpu_state import ids
from vgpu_state.errors import MalformedInput, NotReady
from vgpu_state.ids import GpuUuid

_log = structlog.get_logger()

_WAIT_MS = 500
_PAUSE_S = 1.0
_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.UNCORRECTED_ECC,
    pynvml.nvmlEventTypeSingleBitEccError: EventKind.CORRECTED_ECC,
}
_WANTED = sum(_KINDS)


class Ear(Protocol):
    """Who hears of it. Called on the listener's thread."""

    def heard(self, event: Event) -> None:
        """A GPU has told of something."""

    def listening(self, monitored: frozenset[GpuUuid], unmonitored: frozenset[GpuUuid]) -> None:
        """Events were asked for anew: of these GPUs with success, of these it cannot be."""

    def beat(self) -> None:
        """The thread lives."""

    def failed(self, reason: str) -> None:
        """A wait ended with an error; the GPUs are worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registration:
    session: int
    events: Any  # pynvml's opaque pointer
    uuid_of: dict[int | None, GpuUuid]  # by the address of the GPU's handle, which an event carries


class EventListener:
    """Waits for the events of all GPUs for ever, from `start` on; a fault ends a wait, never the thread."""

    def __init__(self, library: NvmlLibrary, ear: Ear) -> None:
        self._library = library
        self._ear = ear
        self._registration: _Registration | None = None
        self._is_stale = threading.Event()
        self._failure = ""

    def start(self) -> None:
        """A daemon thread: one that hangs keeps no process from ending."""
        threading.Thread(target=self._run, name="nvml-events", daemon=True).start()

    def ask_anew(self) -> None:
        """The GPUs are others than before: has events be asked for again."""
        self._is_stale.set()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._ear.beat()
            try:
                with self._library.borrowed() as session:
                    self._wait_once(session)
                self._failure = ""
                continue
            except NotReady:
                pass  # the next look opens a session
            except pynvml.NVMLError as exc:
                self._is_stale.set()
                self._tell_failure(f"NVML answered a wait for events: {exc}")
            except Exception:  # noqa: BLE001 - the root of a thread: without it nobody would hear of any GPU again
                self._is_stale.set()
                _log.exception("waiting for events failed")
            pause.wait(_PAUSE_S)

    def _wait_once(self, session: int) -> None:
        if self._registration is None or self._registration.session != session or self._is_stale.is_set():
            self._is_stale.clear()
            self._registration = self._register(session)
        registration = self._registration
        try:
            found = pynvml.nvmlEventSetWait_v2(registration.events, _WAIT_MS)
        except pynvml.NVMLError_Timeout:
            return
        gpu, kind = registration.uuid_of.get(_address(found.device)), _KINDS.get(found.eventType)
        if gpu is None or kind is None:
            _log.info("event of another GPU or kind", event_type=found.eventType)
            return
        self._ear.heard(Event(gpu=gpu, kind=kind, code=found.eventData if kind is EventKind.XID else 0))

    def _register(self, session: int) -> _Registration:
        before, self._registration = self._registration, None
        if before is not None and before.session == session:  # that of an earlier session went with it
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(before.events)
        events = pynvml.nvmlEventSetCreate()
        try:
            return self._ask_all(session, events)
        except pynvml.NVMLError:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)
            raise

    def _ask_all(self, session: int, events: Any) -> _Registration:
        uuid_of: dict[int | None, GpuUuid] = {}
        unmonitored: set[GpuUuid] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = ids.parse_gpu_uuid(text(pynvml.nvmlDeviceGetUUID(handle)))
            except (pynvml.NVMLError, MalformedInput):
                continue  # a lost one: `nvml` says so
            types = _types_of(handle)
            self._library.check_open(session)  # a call that has hung may have outlived the library that made `events`
            if types and _ask(handle, types, events):
                uuid_of[_address(handle)] = uuid
            else:
                unmonitored.add(uuid)
        self._ear.listening(frozenset(uuid_of.values()), frozenset(unmonitored))
        return _Registration(session=session, events=events, uuid_of=uuid_of)

    def _tell_failure(self, reason: str) -> None:
        if reason != self._failure:
            _log.warning("events are asked for anew", reason=reason)
        self._failure = reason
        self._ear.failed(reason)


def _types_of(handle: Any) -> int:
    """The kinds of events that are wanted of the GPU, 0 when it tells of no XID."""
    try:
        types = _WANTED & int(pynvml.nvmlDeviceGetSupportedEventTypes(handle))
    except pynvml.NVMLError:
        return 0
    return types if types & pynvml.nvmlEventTypeXidCriticalError else 0


def _ask(handle: Any, types: int, events: Any) -> bool:
    """Whether the set gets the GPU's events from now on."""
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, types, events)
    except pynvml.NVMLError:
        return False
    return True


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
