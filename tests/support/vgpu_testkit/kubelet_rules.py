"""kubelet's judgements of what a DRA plugin says: pure, no I/O.

Some rules are stricter than kubelet's code: what the real one would accept and fail on later (a relative endpoint, a
malformed CDI id, a device without pool) is refused at once, so that the test naming the fault is the one that fails.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from vgpu_testkit.kubelet_values import Claim, Device, HealthReport, KubeletRefusal, Offer

DRA_PLUGIN_TYPE: Final = "DRAPlugin"
V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"

# Source: kubelet's api registration v1 and validation of ResourceSlice spec.driver (DNS subdomain, at most 63).
_DRIVER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DRIVER_NAME_MAX: Final = 63
_HEALTH_MESSAGE_MAX: Final = 1024
# Source: container-device-interface pkg/parser, ParseQualifiedName and its validators.
_CDI_ID: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAnswer:
    """One entry of a NodePrepareResources response, not judged yet."""

    devices: tuple[Device, ...]
    error: str


def services_known_to(release: str) -> tuple[str, ...]:
    """The DRA services a kubelet of `release` ("1.36") speaks, the preferred one first."""
    return (V1, V1BETA1) if _minor(release) >= 34 else (V1BETA1,)


def health_package(release: str) -> str | None:
    """The package of the health service that kubelet watches on every plugin, asked for or not; None where the gate is off.

    Source: kubelet 1.36 (gate ResourceHealthStatus on by default) and 1.37 (v1 of the service).
    """
    if _minor(release) < 36:
        return None
    return "v1alpha1" if _minor(release) == 36 else "v1"


def judge_health(report: Mapping[tuple[str, str], HealthReport]) -> None:
    """Returns when kubelet could make use of every entry.

    Raises:
        KubeletRefusal: a device without a name or pool, a time that is no time, or more text than is kept.
    """
    for (pool, device), entry in report.items():
        if not pool or not device:
            raise KubeletRefusal(f"health of device {device!r} in pool {pool!r}: a name is missing")
        if entry.last_updated_s <= 0 or entry.timeout_s < 0:
            raise KubeletRefusal(f"health of device {device}: last updated {entry.last_updated_s}, lease {entry.timeout_s}")
        if len(entry.message) > _HEALTH_MESSAGE_MAX:
            raise KubeletRefusal(f"health of device {device}: the message has {len(entry.message)} characters")


def choose_service(offer: Offer, *, known: tuple[str, ...]) -> str:
    """The DRA service that kubelet will call on the plugin.

    Raises:
        KubeletRefusal: the name is no driver name, the endpoint no absolute path, or no offered service is known.
    """
    if len(offer.name) > _DRIVER_NAME_MAX or not _DRIVER_NAME.fullmatch(offer.name):
        raise KubeletRefusal(f"invalid DRA driver name {offer.name!r}")
    if not offer.endpoint.startswith("/"):
        raise KubeletRefusal(f"endpoint {offer.endpoint!r} of DRA driver {offer.name} is not an absolute path")
    if not offer.supported_versions:
        raise KubeletRefusal("empty list for supported gRPC services (aka supported versions)")
    for service in known:
        if service in offer.supported_versions:
            return service
    raise KubeletRefusal(f"none of the gRPC services {list(offer.supported_versions)} of {offer.name} are supported")


def judge_prepare(claims: Collection[Claim], answers: Mapping[str, PrepareAnswer]) -> dict[str, tuple[Device, ...]]:
    """The devices per claim uid, if the response answers exactly the claims asked and every entry is valid.

    The first fault in the response's order ends the judgement, as in kubelet. Devices beside an error are ignored.

    Raises:
        KubeletRefusal: an unknown uid, a claim's error, an invalid device, or a claim without an entry.
    """
    names = {claim.uid: claim.name for claim in claims}
    prepared = {}
    for uid, answer in answers.items():
        if uid not in names:
            raise KubeletRefusal(f"NodePrepareResources returned result for unknown claim UID {uid}")
        if answer.error:
            raise KubeletRefusal(f"NodePrepareResources failed for ResourceClaim {names[uid]}: {answer.error}")
        for device in answer.devices:
            _check_device(device, claim_name=names[uid])
        prepared[uid] = answer.devices
    _check_complete(len(names) - len(answers), method="NodePrepareResources")
    return prepared


def judge_unprepare(claims: Collection[Claim], errors: Mapping[str, str]) -> None:
    """Returns if the response answers exactly the claims asked, each without an error.

    Raises:
        KubeletRefusal: an unknown uid, a claim's error, or a claim without an entry.
    """
    names = {claim.uid: claim.name for claim in claims}
    for uid, error in errors.items():
        if uid not in names:
            raise KubeletRefusal(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
        if error:
            raise KubeletRefusal(f"NodeUnprepareResources failed for ResourceClaim {names[uid]}: {error}")
    _check_complete(len(names) - len(errors), method="NodeUnprepareResources")


def _minor(release: str) -> int:
    major, _, minor = release.partition(".")
    if major != "1" or not minor.isdecimal():
        raise ValueError(f"kubelet release {release!r} is not of the form 1.36")
    return int(minor)


def _check_device(device: Device, *, claim_name: str) -> None:
    if not device.pool_name or not device.device_name:
        raise KubeletRefusal(
            f"device of ResourceClaim {claim_name} lacks a name: pool {device.pool_name!r}, device {device.device_name!r}"
        )
    for request in device.request_names:
        if not request or "/" in request:
            raise KubeletRefusal(
                f"device {device.device_name} of ResourceClaim {claim_name}: {request!r} is not a base request name"
            )
    for cdi_id in device.cdi_device_ids:
        if not _CDI_ID.fullmatch(cdi_id):
            raise KubeletRefusal(f"device {device.device_name} of ResourceClaim {claim_name}: {cdi_id!r} is not a CDI device id")


def _check_complete(missing: int, *, method: str) -> None:
    if missing:
        raise KubeletRefusal(f"{method} skipped {missing} ResourceClaims")
