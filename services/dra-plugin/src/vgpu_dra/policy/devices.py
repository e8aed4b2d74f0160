"""The GPUs of this node → the devices that the scheduler may give away, and what keeps it from giving one away twice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vgpu_dra.inventory import Gpu, Inventory
from vgpu_dra.policy import device_documents
from vgpu_dra.policy.features import Features
from vgpu_dra.rules import OfferRules
from vgpu_dra.slice_documents import Document
from vgpu_dra.taints import Taint, TaintEffect, Taints
from vgpu_state import container_abi
from vgpu_state.claims import DeviceKind

# What the memory of a board that can be partitioned is cut into; on one with fewer slices the rest is nobody's. A fixed number
# keeps the budgets, and with them the generation of the pool, as they are when a GPU is partitioned anew.
_MEMORY_SLICES = 8
_LEAST_SHARED_BYTES = 2 * device_documents.MIB  # the API wants room for one step above the least share
_MOST_TAINTS = 16  # the API's limit for a device


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this node offers.

    `gpus` holds, for each GPU in NVML's order, its devices in the order of preference; `counter_sets` the budgets that these are
    paid from. `withheld` has a sentence for each device that is there and not offered.
    """

    gpus: tuple[tuple[Document, ...], ...]
    counter_sets: tuple[Document, ...]
    withheld: tuple[str, ...]

    @property
    def device_count(self) -> int:
        return sum(len(devices) for devices in self.gpus)


def offer(inventory: Inventory, *, rules: OfferRules, features: Features, taints: Taints) -> Offer:
    """The devices with the taints of their GPU, each with what it costs of the GPU where the cluster can count."""
    gpus: list[tuple[Document, ...]] = []
    withheld: list[str] = []
    for gpu in inventory.gpus:
        found = list(_devices(gpu, inventory, rules=rules, features=features))
        withheld += [reason for reason in found if isinstance(reason, str)]
        devices = tuple(device for device in found if not isinstance(device, str))
        of_gpu = taints.get(gpu.uuid, ())
        if not features.has_taints and any(taint.effect is TaintEffect.NO_SCHEDULE for taint in of_gpu):
            # What the scheduler does not see it does not give away either, and whoever has the device keeps it.
            withheld.append(
                f"GPU {gpu.uuid}: it is not well ({_words(of_gpu)}), and this cluster keeps no device taints to say so"
            )
            devices = ()
        gpus.append(tuple(_tainted(device, of_gpu, features) for device in devices))
    return Offer(
        gpus=tuple(gpus),
        counter_sets=tuple(_counter_set(gpu) for gpu in inventory.gpus) if features.has_counters else (),
        withheld=tuple(withheld),
    )


def _devices(gpu: Gpu, inventory: Inventory, *, rules: OfferRules, features: Features) -> Iterator[Document | str]:
    """The devices of one GPU, and a sentence in the place of each that cannot be offered."""
    if gpu.is_mig:
        # The driver lets nothing run on the GPU as a whole, so that neither it nor a share of it is there. Devices that exist lie
        # side by side; what they cost is said all the same, so that a reader finds one rule.
        for mig in gpu.mig_devices:
            device = device_documents.mig(mig, gpu, inventory)
            yield {**device, **_price(gpu, range(mig.start, mig.start + mig.size), features)}
        return
    price = _price(gpu, range(_MEMORY_SLICES), features)
    for kind in _kinds(rules, features):
        if kind is DeviceKind.GPU:
            yield {**device_documents.whole(gpu, inventory), **price}
        else:
            # One that the API server cannot take would cost the whole slice; one that Prepare refuses, every pod that gets it.
            reason = _reason_not_to_share(gpu, rules)
            yield reason or {**device_documents.vgpu(gpu, inventory, ratios=rules.ratios), **price}


def _kinds(rules: OfferRules, features: Features) -> tuple[DeviceKind, ...]:
    """Both, where the scheduler sees that each costs the whole GPU; else the one that the operator chose."""
    if not rules.has_shares:
        return (DeviceKind.GPU,)
    return (DeviceKind.VGPU, DeviceKind.GPU) if features.has_counters else (rules.kind_without_counters,)


def _reason_not_to_share(gpu: Gpu, rules: OfferRules) -> str | None:
    if not gpu.has_slot:
        return (
            f"shares of GPU {gpu.uuid}: it has index {gpu.index}; the limits file has slots 0 to {container_abi.MAX_DEVICES - 1}"
        )
    shared_bytes = rules.ratios.memory_bytes(gpu.memory_bytes)
    if shared_bytes < _LEAST_SHARED_BYTES:
        return f"shares of GPU {gpu.uuid}: there are {shared_bytes} bytes of memory to give away"
    return None


def _counter_set(gpu: Gpu) -> Document:
    """The memory slices of a GPU. Which devices can be side by side is decided by these alone: MIG devices that exist have their
    other units already, so that counting those too could only refuse what the hardware allows.
    """
    return {"name": _counter_set_name(gpu), "counters": _counters(range(_MEMORY_SLICES))}


def _price(gpu: Gpu, slices: range, features: Features) -> Mapping[str, object]:
    if not features.has_counters:
        return {}
    return {"consumesCounters": [{"counterSet": _counter_set_name(gpu), "counters": _counters(slices)}]}


def _counters(slices: range) -> Document:
    return {f"memory-slice-{i}": {"value": "1"} for i in slices}


def _counter_set_name(gpu: Gpu) -> str:
    """Source: vgpu-manager pkg/kubeletplugin/partitions.go."""
    return f"gpu-{gpu.minor}-counter-set"


def _tainted(device: Document, taints: tuple[Taint, ...], features: Features) -> Document:
    shown = [t for t in taints if t.effect is not TaintEffect.NONE or features.has_informing_taints]
    if not shown or not features.has_taints:
        return device
    # What keeps claims away comes first: the API takes so many and no more.
    shown.sort(key=lambda taint: taint.effect is TaintEffect.NONE)
    return {**device, "taints": [_taint(taint) for taint in shown[:_MOST_TAINTS]]}


def _taint(taint: Taint) -> Document:
    return {"key": taint.key, "effect": str(taint.effect)} | ({"value": taint.value} if taint.value else {})


def _words(taints: tuple[Taint, ...]) -> str:
    return ", ".join(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in taints)
