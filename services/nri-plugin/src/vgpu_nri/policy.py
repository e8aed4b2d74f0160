"""The decisions of the create path: whose container it is, how long we may take, what a refusal says. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_nri.containers import ContainerState, DeviceRule, VgpuContainer
from vgpu_state import grants
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import ClaimUid

# The runtime serves one NRI request of the node at a time, so each wait stalls every container; half of its default of 2 s.
LONGEST_HOOK_S = 1.0
_LATE_SHARE = 0.75

_LIVE = frozenset({ContainerState.CREATED, ContainerState.RUNNING, ContainerState.PAUSED})


def hook_deadline_s(timeout_ns: int) -> float:
    """Seconds in which a hook must be answered: half of what the runtime still waits, never more than LONGEST_HOOK_S.

    Beyond its timeout the runtime creates the container without us; half leaves room for an error reply to get there.
    """
    if timeout_ns <= 0:
        return LONGEST_HOOK_S
    return min(timeout_ns / 2e9, LONGEST_HOOK_S)


def is_late(taken_s: float, *, timeout_ns: int) -> bool:
    """Whether an answer may have missed the runtime's timeout on its way. NRI 0.6 says nothing then and never calls again."""
    return timeout_ns > 0 and taken_s > timeout_ns / 1e9 * _LATE_SHARE


def allows_all_devices(rules: Iterable[DeviceRule]) -> bool:
    """Whether a rule opens every device node, as a privileged container's does. Rules of one type only are ordinary."""
    return any(rule.is_allowed and rule.type in ("", "a") and rule.major is None and rule.minor is None for rule in rules)


def live_containers(containers: Iterable[VgpuContainer]) -> tuple[VgpuContainer, ...]:
    """Those that run or may still be started."""
    return tuple(container for container in containers if container.state in _LIVE)


def claims_of(container: VgpuContainer) -> tuple[ClaimUid, ...]:
    """The claims whose grants the container shows, ascending.

    Raises:
        MalformedInput: a grant is not of its form, or there are more than a container can have.
    """
    grants.check_count(len(container.grants))
    return tuple(sorted({grants.parse_grant(key, value).claim_uid for key, value in container.grants}))


def shown_claims(container: VgpuContainer) -> str:
    """The claims for a message or a log line: uids joined by commas, without what cannot be read."""
    uids = set()
    for key, value in container.grants:
        try:
            uids.add(grants.parse_grant(key, value).claim_uid)
        except MalformedInput:
            continue
    return ",".join(sorted(uids))


def pod_name(container: VgpuContainer) -> str:
    """Namespace and name; "" where the runtime left the pod out, as it does when the sandbox is gone."""
    return f"{container.pod.namespace}/{container.pod.name}" if container.pod.name else ""


def full_name(container: VgpuContainer) -> str:
    return f"{pod_name(container)}/{container.name}"


def refusal(what: str, container: VgpuContainer, reason: str) -> str:
    """What the runtime, and so the pod's events, say of a container that was refused."""
    claims = shown_claims(container)
    of_claim = f" of claim {claims}" if claims else ""
    return f"{what}{of_claim} for container {full_name(container)}: {reason}"
