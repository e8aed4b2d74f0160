"""The env entries by which a container shows what kubelet gave it: VGPU_GRANT_<key>=<claim uid>/<request>/<nonce>.

The key is derived, so that every device of a claim has an entry of its own name; the nonce is drawn at Prepare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from vgpu_state import ids
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import ClaimUid, DeviceName, GrantKey, Nonce, PoolName, RequestName, ShareId

ENV_PREFIX = "VGPU_GRANT_"
MAX_GRANTS = 128  # a claim gives at most 32; four whole ones in one container are more than its library has slots for


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGrant:
    """A grant as a container shows it: a claim of a right, checked against the record before it counts."""

    key: GrantKey
    claim_uid: ClaimUid
    request: RequestName
    nonce: Nonce

    def __repr__(self) -> str:
        return f"ShownGrant(key={self.key!r}, claim_uid={self.claim_uid!r}, request={self.request!r})"


def grant_key(*, claim_uid: ClaimUid, request: RequestName, pool: PoolName, device: DeviceName, share_id: ShareId) -> GrantKey:
    """The first 16 hex digits of SHA-256 over the five parts joined by NUL, which none of them can contain."""
    joined = "\0".join((claim_uid, request, pool, device, share_id))
    return GrantKey(hashlib.sha256(joined.encode()).hexdigest()[:16])


def encode_grant_env(*, key: GrantKey, claim_uid: ClaimUid, request: RequestName, nonce: Nonce) -> str:
    return f"{ENV_PREFIX}{key}={claim_uid}/{request}/{nonce}"


def grant_entries(env: Iterable[str]) -> list[tuple[str, str]]:
    """(key, value) of the entries whose name starts as a grant's does; a container with none is not ours.

    At most one more than a container can have: env comes from images and pods, and what is too much is refused unread.
    """
    entries = (
        (entry[len(ENV_PREFIX) :].partition("=")[0], entry.partition("=")[2]) for entry in env if entry.startswith(ENV_PREFIX)
    )
    return list(islice(entries, MAX_GRANTS + 1))


def check_count(count: int) -> None:
    """Returns when a container may show so many grants.

    Raises:
        MalformedInput: it shows more than one claim can give.
    """
    if count > MAX_GRANTS:
        raise MalformedInput(f"more than {MAX_GRANTS} grants ({ENV_PREFIX}…) are shown; a container has at most {MAX_GRANTS}")


def parse_grant(key: str, value: str) -> ShownGrant:
    """The grant shown by one env entry. The uid ends at the first slash, the nonce starts after the last one.

    Raises:
        MalformedInput: naming the entry and what of it is wrong; the nonce is never in the message.
    """
    parsed_key = ids.parse_grant_key(key)
    uid, _, rest = value.partition("/")
    request, _, nonce = rest.rpartition("/")
    try:
        return ShownGrant(
            key=parsed_key,
            claim_uid=ids.parse_claim_uid(uid),
            request=ids.parse_request_name(request),
            nonce=ids.parse_nonce(nonce),
        )
    except MalformedInput as exc:
        raise MalformedInput(f"env {ENV_PREFIX}{parsed_key}: {exc}") from exc
