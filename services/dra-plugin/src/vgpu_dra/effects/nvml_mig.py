"""NVML → the MIG devices of one GPU. They are read only: whoever partitioned the GPU keeps it.

Every call may block for ever, like those of `effects.nvml`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pynvml

from vgpu_dra.effects.nvml_library import said, text
from vgpu_dra.inventory import MigDevice
from vgpu_state import ids
from vgpu_state.errors import MalformedInput

_GIB = 1 << 30
_MIB = 1 << 20
_MEMORY_EIGHTHS = 8  # a profile's name counts memory in eighths of the board's
# What follows the size in a profile's name. Source: go-nvlib, pkg/nvlib/device/mig_profile.go.
_SUFFIXES: Mapping[int | None, str] = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
# A number that this board, or this driver, has no profile for.
_NO_PROFILE = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
)


def is_partitioned(handle: Any) -> bool:  # Any: pynvml's opaque pointer
    """Whether MIG mode is on now; one that only the next reset brings changes nothing yet.

    Raises:
        NVMLError: the GPU is not well. One that has no MIG is not partitioned.
    """
    mode = said(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and bool(mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def read_mig_devices(handle: Any, *, gpu_memory_bytes: int) -> tuple[tuple[MigDevice, ...], tuple[str, ...]]:
    """The devices by the place of their memory, and a sentence for each that is left out.

    Raises:
        NVMLError: the GPU itself is lost or says nothing of its profiles.
    """
    kinds = _profiles_by_id(handle)
    found: list[MigDevice] = []
    left_out: list[str] = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(_read(handle, device, kinds=kinds, gpu_memory_bytes=gpu_memory_bytes))
        except pynvml.NVMLError as exc:
            if exc.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            if exc.value != pynvml.NVML_ERROR_NOT_FOUND:  # no device at this index
                left_out.append(f"MIG device {index}: {exc}")
        except MalformedInput as exc:
            left_out.append(f"MIG device {index}: {exc}")
    # Devices are named by the place of their GPU instance, as upstream names them: two in one instance would have one name.
    sharers = Counter(mig.gpu_instance for mig in found)
    left_out += [
        f"MIG devices of GPU instance {instance}: it has {count} compute instances; a GPU instance with one is offered"
        for instance, count in sorted(sharers.items())
        if count > 1
    ]
    alone = [mig for mig in found if sharers[mig.gpu_instance] == 1]
    return tuple(sorted(alone, key=lambda mig: mig.start)), tuple(left_out)


def profile_name(*, compute_slices: int, slices: int, memory_mib: int, gpu_memory_bytes: int, kind: int | None) -> str:
    """The name that NVIDIA's tools give a device, "1g.10gb" or "1c.3g.40gb"; `kind` is NVML's number of the profile.

    Source: go-nvlib, pkg/nvlib/device/mig_profile.go, NewMigProfile.
    """
    eighths = math.ceil(memory_mib * _MIB * _MEMORY_EIGHTHS / gpu_memory_bytes)
    gigabytes = math.floor(eighths / _MEMORY_EIGHTHS * math.ceil(gpu_memory_bytes / _GIB) + 0.5)
    compute = "" if compute_slices == slices else f"{compute_slices}c."
    return f"{compute}{slices}g.{gigabytes}gb{_SUFFIXES.get(kind, '')}"


def _profiles_by_id(handle: Any) -> dict[int, int]:
    """NVML's number of each profile, by the board's, which is what a GPU instance says of itself."""
    found: dict[int, int] = {}
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version=1)
        except pynvml.NVMLError as exc:
            if exc.value not in _NO_PROFILE:
                raise
        else:
            found[info.id] = kind
    return found


def _read(handle: Any, device: Any, *, kinds: Mapping[int, int], gpu_memory_bytes: int) -> MigDevice:
    instance = pynvml.nvmlDeviceGetGpuInstanceId(device)
    place = pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance))
    has = pynvml.nvmlDeviceGetAttributes_v2(device)
    return MigDevice(
        uuid=ids.parse_mig_uuid(text(pynvml.nvmlDeviceGetUUID(device))),
        gpu_instance=instance,
        compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(device),
        profile=profile_name(
            compute_slices=has.computeInstanceSliceCount,
            slices=has.gpuInstanceSliceCount,
            memory_mib=has.memorySizeMB,
            gpu_memory_bytes=gpu_memory_bytes,
            kind=kinds.get(place.profileId),
        ),
        profile_id=place.profileId,
        start=place.placement.start,
        size=place.placement.size,
        memory_bytes=has.memorySizeMB * _MIB,
        multiprocessors=has.multiprocessorCount,
        copy_engines=has.sharedCopyEngineCount,
        decoders=has.sharedDecoderCount,
        encoders=has.sharedEncoderCount,
        jpeg_engines=has.sharedJpegCount,
        ofa_engines=has.sharedOfaCount,
    )
