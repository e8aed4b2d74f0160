"""Whether this process is ready, and whether a restart would help: one sentence, or None when all is well."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path

# A runtime that starts, or is upgraded, is away for less; the design's bound for a restart that may help.
NO_SESSION_S = 120.0


class Phase(Enum):
    STARTING = "starting"
    STANDBY = "another instance holds the plugin lock"
    UNREACHABLE = "the runtime cannot be reached"
    CONNECTED = "connected, not synchronized yet"
    SYNCHRONIZED = "synchronized"
    CLOSED = "the session ended"


class Health:
    """What the connection loop reports, as probes see it. `clock` is in seconds.

    `episode` is a file that says that a restart was already asked for because of a missing session: a second one would not help
    where the first did not, so none is asked for until a session stood again.
    """

    def __init__(self, *, clock: Callable[[], float], episode: Path) -> None:
        self._clock = clock
        self._episode = episode
        self._was_restarted = episode.exists()
        self._phase = Phase.STARTING
        self._detail = ""
        self._reachable_since: float | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    def standby(self) -> None:
        self._enter(Phase.STANDBY, "")

    def unreachable(self, detail: str) -> None:
        self._enter(Phase.UNREACHABLE, detail)
        self._reachable_since = None

    def connected(self) -> None:
        self._enter(Phase.CONNECTED, "")
        if self._reachable_since is None:
            self._reachable_since = self._clock()

    def synchronized(self) -> None:
        self._enter(Phase.SYNCHRONIZED, "")
        self._reachable_since = None
        self._was_restarted = False
        self._episode.unlink(missing_ok=True)

    def closed(self, detail: str) -> None:
        """The session ended. That there is none counts from here, or from when the runtime could first be reached."""
        self._enter(Phase.CLOSED, detail)
        if self._reachable_since is None:
            self._reachable_since = self._clock()

    def live(self) -> str | None:
        if self._reachable_since is None or self._was_restarted:
            return None
        without_s = self._clock() - self._reachable_since
        if without_s < NO_SESSION_S:
            return None
        self._episode.touch()
        return f"the runtime can be reached, and for {without_s:.0f} s there has been no session: {self._sentence()}"

    def ready(self) -> str | None:
        if self._phase in (Phase.SYNCHRONIZED, Phase.STANDBY):
            return None
        return self._sentence()

    def _enter(self, phase: Phase, detail: str) -> None:
        self._phase = phase
        self._detail = detail

    def _sentence(self) -> str:
        return f"{self._phase.value}: {self._detail}" if self._detail else self._phase.value
