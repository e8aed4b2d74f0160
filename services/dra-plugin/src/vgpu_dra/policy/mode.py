"""Whether a claim's partitions are made at Prepare, since NRI is not there, and how long it is waited for before. Pure."""

from __future__ import annotations

from vgpu_state.claims import EagerReason

RECONNECT_S = 5.0
# When a node starts, nri-plugin and the runtime may be seconds behind. Less than the 30 s that looking up a claim may take in
# all, so that there is time left for its pods.
FIRST_SESSION_S = 25.0


def patience_s(*, serving_for_s: float, has_ever_lived: bool) -> float:
    """For how long a Prepare waits for the lease: at the start, for one that there never was, longer than later."""
    if has_ever_lived:
        return RECONNECT_S
    return max(RECONNECT_S, FIRST_SESSION_S - serving_for_s)


def eager_reason(*, is_nri_supported: bool, is_alive: bool, has_ever_lived: bool) -> EagerReason | None:
    """Why NRI does not assign the claim's partitions, None where it does. `is_alive`: the lease is, after it was waited for."""
    if not is_nri_supported:
        return EagerReason.NRI_DISABLED
    if is_alive:
        return None
    return EagerReason.NRI_LOST if has_ever_lived else EagerReason.NRI_ABSENT
