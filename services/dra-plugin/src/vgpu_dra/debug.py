"""What /debug shows of claims and partitions. No nonce is in it."""

from __future__ import annotations

from typing import Any

from vgpu_dra.ledger import Ledger
from vgpu_state.claims import ClaimRecord


def claims(ledger: Ledger) -> dict[str, Any]:
    """Prepared and quarantined claims by uid; of the prepared, which requests no container holds."""
    # Copies: worker threads change both while this is read.
    prepared: dict[str, Any] = {uid: _claim(record, ledger) for uid, record in dict(ledger.records).items()}
    return prepared | {uid: {"state": "quarantined", "reason": reason} for uid, reason in dict(ledger.quarantined).items()}


def partitions(ledger: Ledger) -> list[dict[str, Any]]:
    """Who holds what."""
    return [
        {
            "claim_uid": uid,
            "partition": name,
            "container_id": binding.runtime_id,
            "state": binding.state.value,
            "started": binding.is_started,
            **({} if binding.home is None else {"home": binding.home}),
        }
        for uid, name, binding in ledger.all_bindings()
    ]


def _claim(record: ClaimRecord, ledger: Ledger) -> dict[str, Any]:
    held = {key for b in ledger.bindings(record.claim.uid).values() for key in b.grants}
    return {
        "claim": f"{record.claim.namespace}/{record.claim.name}",
        "state": record.state.value,
        "mode": record.mode.value,
        **_eager(record),
        "devices": [f"{r.request}={r.device}" for r in record.results],
        "unused_grants": [r.request for r in record.vgpus if r.grant.key not in held],
    }


def _eager(record: ClaimRecord) -> dict[str, Any]:
    if record.eager is None:
        return {}
    return {
        "eager_reason": record.eager.reason.value,
        "partitions": {p.name: [c.name for c in p.containers] for p in record.eager.partitions},
    }
