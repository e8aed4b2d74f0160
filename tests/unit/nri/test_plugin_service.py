"""The hooks' boundary: whatever a runtime sends and whatever breaks behind it, there is an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_nri.containers import Adjustment, Stage, VgpuContainer
from vgpu_nri.ledger import Ledger
from vgpu_nri.plugin_service import Notices, PluginService, Surroundings
from vgpu_nri.session import Session
from vgpu_nri.telemetry import Telemetry
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.wire import PLUGIN_SERVICE
from vgpu_proto import nri
from vgpu_testkit import nri_messages

_METHODS = ("Configure", "Synchronize", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "StateChange")


class _Broken:
    """A dra-plugin client with a bug of ours in it."""

    async def ensure(self, container: VgpuContainer, *, session_id: int, deadline_s: float) -> Adjustment:
        raise KeyError("partition")

    async def record_start(self, container: VgpuContainer, *, unplaced_in: int | None, deadline_s: float) -> None:
        raise RuntimeError("boom")

    async def release(self, runtime_id: str, stage: Stage, *, deadline_s: float) -> None:
        raise RuntimeError("boom")


class _Watch:
    """What the session was told, and a clock that goes on by `step_s` at each look."""

    def __init__(self, *, step_s: float = 0.0) -> None:
        self.told: list[str] = []
        self._step_s = step_s
        self._now_s = 0.0

    def clock(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def _service(watch: _Watch, ledger: Ledger | None = None) -> PluginService:
    session = Session()
    session.register(at_ns=1)
    session.configure(runtime_name="containerd", runtime_version="v2.1.9")
    return PluginService(
        session,
        surroundings=Surroundings(
            partitions=_Broken(), ledger=ledger or Ledger(), telemetry=Telemetry(), clock=watch.clock, boottime_ns=lambda: 2
        ),
        notices=Notices(
            synchronized=lambda: watch.told.append("synchronized"),
            late=lambda: watch.told.append("late"),
            shutdown=lambda: watch.told.append("shutdown"),
        ),
    )


async def _answer(service: PluginService, method: str, message: Any) -> Response:
    payload = message if isinstance(message, bytes) else message.SerializeToString()
    answer = service.serve(Request(service=PLUGIN_SERVICE, method=method, payload=payload, timeout_ns=2_000_000_000))
    return answer if isinstance(answer, Response) else await answer()


@pytest.mark.parametrize(
    ("method", "message", "said"),
    [
        ("CreateContainer", nri_messages.create(), "EnsurePartition of claim 3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"),
        ("StartContainer", nri_messages.start(), "RecordStart of claim 3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"),
    ],
)
async def test_bug_of_ours_is_an_error_reply_that_names_the_container(method: str, message: Any, said: str) -> None:
    answer = await _answer(_service(_Watch()), method, message)

    assert answer.code == 13
    assert answer.message.startswith(f"{said} for container team-a/train-0/train: internal error of nri-plugin: ")


async def test_release_is_kept_to_be_said_again_whatever_ends_the_call() -> None:
    ledger = Ledger()
    service = _service(_Watch(), ledger)
    await _answer(service, "CreateContainer", nri_messages.create())

    await _answer(service, "StopContainer", nri_messages.stop())

    assert list(ledger.undelivered.values()) == [Stage.STOPPED]


async def test_container_that_lost_its_grant_is_not_started() -> None:
    service = _service(_Watch())
    await _answer(service, "CreateContainer", nri_messages.create())

    answer = await _answer(service, "StartContainer", nri_messages.start(env=()))

    assert answer == Response(code=3, message=f"RecordStart: the env of container {nri_messages.ID} no longer shows a grant")


async def test_synchronize_that_was_answered_in_time_is_told_as_such() -> None:
    watch = _Watch()

    assert await _answer(_service(watch), "Synchronize", nri.SynchronizeRequest()) == Response()

    assert watch.told == ["synchronized"]


async def test_synchronize_that_was_answered_late_ends_the_session() -> None:
    watch = _Watch(step_s=1.6)

    assert await _answer(_service(watch), "Synchronize", nri.SynchronizeRequest()) == Response()

    assert watch.told == ["synchronized", "late"]


@given(st.sampled_from(_METHODS), st.binary(max_size=120))
async def test_any_payload_of_any_method_has_an_answer(method: str, payload: bytes) -> None:
    answer = await _answer(_service(_Watch()), method, payload)

    assert answer.code in {0, 3, 9, 13}
    assert not (answer.code and answer.payload)
