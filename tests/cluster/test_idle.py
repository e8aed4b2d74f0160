"""What the API server hears of us while nothing happens: its own audit log has no write of ours."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu_pods import Namespace, claim_spec, pod, request

# Longer than the publisher's look at its slices a minute after it wrote them. VGPU_IDLE_S=600 makes it ten minutes.
_IDLE_S = float(os.environ.get("VGPU_IDLE_S") or 90)


@pytest.mark.timeout(_IDLE_S + 120)
def test_nothing_is_written_while_a_pod_runs_and_nothing_changes(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    namespace.run(pod(used))
    began = datetime.now(UTC)

    time.sleep(_IDLE_S)

    vgpu = namespace.vgpu
    assert [_line(event) for event in vgpu.writes() if _time(event) > began] == []
    # That the log has nothing of ours in that time says something only where it has others' writes, and ours of before.
    kubelet = f"system:node:{vgpu.cluster.node_name}"
    assert any(event["user"]["username"] == kubelet and _time(event) > began for event in vgpu.cluster.audit_events())
    assert {(event["verb"], event["objectRef"]["resource"]) for event in vgpu.writes()} >= {("create", "resourceslices")}


def _time(event: Object) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def _line(event: Object) -> str:
    about = event["objectRef"]
    return f"{event['requestReceivedTimestamp']} {event['verb']} {about['resource']}/{about.get('name')}"
