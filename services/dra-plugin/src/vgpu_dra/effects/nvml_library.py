"""The one loaded libnvidia-ml.so.1: opened, shared by two threads, and opened anew after the driver was replaced.

nvidia-ml-py keeps the library, and every function it has looked up, in globals of its own (13.615.71, pinned); nobody else
touches those. A library is never unmapped: a thread may hang in it for ever. Since it is loaded by the name that its links lead
to, a driver of another version is another file; one of the same version is the same code, and another session is enough.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pynvml
import structlog

from vgpu_dra.effects.driver_files import find_nvml
from vgpu_state.errors import NotReady

_log = structlog.get_logger()
_T = TypeVar("_T")

# A borrower's call lasts some 0.5 s; one that takes longer hangs.
_RETURN_S = 2.0
# The session has outlived the driver that it was opened with. Unknown Error is what a driver answers that was taken away.
_ENDED = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
_NOT_SAID = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})


def ends_session(error: pynvml.NVMLError) -> bool:
    """Whether only another session can answer otherwise."""
    return error.value in _ENDED


def said(ask: Callable[[], _T]) -> _T | None:
    """The answer, or None where this GPU or driver has none. Other errors mean that the GPU is not well."""
    try:
        return ask()
    except pynvml.NVMLError as exc:
        if exc.value in _NOT_SAID:
            return None
        raise


def text(value: str | bytes) -> str:
    """What nvidia-ml-py gives where NVML gives characters."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class NvmlLibrary:
    """NVML of the driver below `driver_root`. One thread opens and closes it; another may borrow the open session."""

    def __init__(self, driver_root: Path) -> None:
        self._driver_root = driver_root
        self._path: Path | None = None
        self._is_open = False
        self._session = 0
        self._borrowed: set[int] = set()
        self._changed = threading.Condition()

    def open(self) -> None:
        """There is a session. Does nothing if there is one.

        Raises:
            NotReady: there is no library, or it cannot be loaded.
            NVMLError: it finds no driver, or another than it belongs to.
        """
        if self._is_open:
            return
        self._load()
        pynvml.nvmlInit()
        with self._changed:
            self._session += 1
            self._is_open = True

    def close(self) -> None:
        """The session is over, once its borrower's call has returned; a call that hangs is left alone, in its old session."""
        with self._changed:
            if not self._is_open:
                return
            self._is_open = False
            is_free = self._changed.wait_for(lambda: self._session not in self._borrowed, timeout=_RETURN_S)
        if not is_free:
            _log.warning("NVML session left behind", reason="a call in it has not returned", library=str(self._path))
            return
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as exc:
            _log.info("NVML session not shut down", reason=str(exc), library=str(self._path))

    @contextmanager
    def borrowed(self) -> Iterator[int]:
        """The session, by number; it stays open until the block ends. What was made in another session is void.

        Raises:
            NotReady: there is none now.
        """
        with self._changed:
            if not self._is_open:
                raise NotReady("NVML is not open")
            session = self._session
            self._borrowed.add(session)
        try:
            yield session
        finally:
            with self._changed:
                self._borrowed.discard(session)
                self._changed.notify_all()

    def check_open(self, session: int) -> None:
        """Returns when what was made in the session may still be used.

        Raises:
            NotReady: it is over; its borrower took too long.
        """
        with self._changed:
            if not self._is_open or session != self._session:
                raise NotReady("the NVML session is over")

    def _load(self) -> None:
        link = find_nvml(self._driver_root)
        if link is None:
            raise NotReady(f"no libnvidia-ml.so.1 under {self._driver_root} (--driver-root): is the NVIDIA driver installed?")
        path = link.resolve()
        if path == self._path:
            return
        try:
            library = ctypes.CDLL(str(path))
        except OSError as exc:
            raise NotReady(f"cannot load {link}: {exc}") from exc
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()
        if self._path is not None:
            _log.info("NVML library replaced", library=str(path), before=str(self._path))
        self._path = path
