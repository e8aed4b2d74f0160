"""How one GPU is, by NVML's word. Runs on the thread of `nvml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from vgpu_dra.effects.nvml_library import ends_session
from vgpu_dra.readings import Reading

_T = TypeVar("_T")

# What is asked here is an extra: any other refusal (no permission, say) must not make a GPU count as lost that works.
_NOT_WELL = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_CORRUPTED_INFOROM})
_RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


def read(handle: Any) -> Reading:  # Any: pynvml's opaque pointer
    """The reading.

    Raises:
        NVMLError: the GPU is not well enough to say.
    """
    return Reading(
        recovery_action=_recovery_action(handle),
        uncorrected_errors=_said(
            lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        ),
        needs_reset=_needs_reset(handle),
    )


def _recovery_action(handle: Any) -> int | None:
    values = _said(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY]))
    # Each field has an error of its own: an older driver does not know this one.
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _needs_reset(handle: Any) -> bool:
    rows = _said(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))  # since Ampere
    pages = _said(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))  # before
    _, _, is_pending, has_failed = rows or (0, 0, 0, 0)
    return bool(is_pending or has_failed or pages)


def _said(ask: Callable[[], _T]) -> _T | None:
    """The answer, None where there is none, unless that is since the GPU or the driver is not well."""
    try:
        return ask()
    except pynvml.NVMLError as exc:
        if exc.value in _NOT_WELL or ends_session(exc):
            raise
        return None
