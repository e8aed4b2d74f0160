"""The recorded conversations that other tests replay are what containerd still says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vgpu_proto import nri
from vgpu_testkit import nri_scenarios
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.cri import Cri
from vgpu_testkit.recording import Call, Recording, load_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What does not differ from one run to the next in a call of the runtime's or the plugin's."""

    method: str
    event: int
    code: int
    containers: frozenset[tuple[str, int, bool]]  # name, state, whether it has a pid
    env: frozenset[str]
    mounts: frozenset[str]
    devices: frozenset[tuple[str, int, int]]


@pytest.mark.parametrize("scenario", sorted(nri_scenarios.SCENARIOS))
async def test_recorded_conversation_is_what_containerd_says(containerd: Containerd, cri: Cri, scenario: str) -> None:
    recorded = load_recording(f"{'1.7' if '1.7.' in containerd.version_text else '2'}/{scenario}")

    stage = nri_scenarios.set_stage(containerd, cri)
    heard = Recording(name=scenario, chunks=await nri_scenarios.SCENARIOS[scenario](stage))

    assert [_said(call) for call in heard.calls()] == [_said(call) for call in recorded.calls()]


def _said(call: Call) -> Said:
    containers = _containers(call)
    return Said(
        method=call.request.method,
        event=_event(call),
        code=call.response.code,
        containers=frozenset((one.name, one.state, one.pid > 0) for one in containers),
        env=frozenset(entry for one in containers for entry in one.env if not entry.startswith("HOSTNAME=")),
        mounts=frozenset(mount.destination for one in containers for mount in one.mounts),
        devices=frozenset((d.path, d.major, d.minor) for one in containers for d in one.linux.devices),
    )


def _event(call: Call) -> int:
    if call.request.method != "StateChange":
        return 0
    return nri.StateChangeEvent.FromString(call.request.payload).event


def _containers(call: Call) -> list[nri.Container]:
    payload = call.request.payload
    match call.request.method:
        case "Synchronize":
            return list(nri.SynchronizeRequest.FromString(payload).containers)
        case "CreateContainer":
            return [nri.CreateContainerRequest.FromString(payload).container]
        case "StopContainer":
            return [nri.StopContainerRequest.FromString(payload).container]
        case "StateChange":
            return [nri.StateChangeEvent.FromString(payload).container]
        case _:
            return []
