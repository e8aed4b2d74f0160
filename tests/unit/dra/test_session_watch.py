"""An absence of nri-plugin is told once it is long, and once."""

from __future__ import annotations

from vgpu_dra.event_documents import Reason, Severity
from vgpu_dra.recorder import NoRecorder
from vgpu_dra.session_watch import SessionWatch


class Told(NoRecorder):
    """Keeps what the node was told."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def node(self, reason: Reason, note: str, severity: Severity = Severity.WARNING) -> None:
        assert severity is Severity.WARNING
        assert note.startswith(
            "nri-plugin has had no session with the container runtime for 120 s: containers of claims that were prepared with it "
            "do not start until it is back, new claims are prepared without it"
        )
        self.reasons.append(reason)


def test_absence_of_two_minutes_is_told_once_for_each_episode() -> None:
    now, renewed, told = [1000.0], [1000.0], Told()
    watch = SessionWatch(lambda: renewed[0], told, clock=lambda: now[0])

    counts = []
    for now_s, renewed_s in ((1119, 1000), (1120, 1000), (1500, 1000), (1501, 1501), (1620, 1501), (1621, 1501), (1700, 1501)):
        now[0], renewed[0] = now_s, renewed_s
        watch.look()
        counts.append(len(told.reasons))

    assert counts == [0, 1, 1, 1, 1, 2, 2]
    assert set(told.reasons) == {Reason.NRI_AWAY}
