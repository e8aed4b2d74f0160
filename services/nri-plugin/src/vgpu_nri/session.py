"""The life of one connection to the runtime, as a table: registered, configured, synchronized. Sans-IO.

The runtime calls Configure before it answers RegisterPlugin, so that answer moves nothing. Parts of a split Synchronize are
collected until the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from vgpu_nri.containers import VgpuContainer
from vgpu_state.errors import PreconditionFailed

PLUGIN_NAME: Final = "manager.nvidia.com"
PLUGIN_INDEX: Final = "00"  # exactly two digits, or the runtime refuses

# CREATE, START, STOP and REMOVE_CONTAINER: bit (event - 1). Few, since each event subscribed to costs every container a call;
# and none above 0x07ff, which runtimes before NRI 0.10 answer by closing the connection.
EVENT_MASK: Final = 0x0628


class State(Enum):
    NEW = "new"
    REGISTERED = "registered"
    CONFIGURED = "configured"
    SYNCHRONIZED = "synchronized"
    CLOSED = "closed"


class Input(Enum):
    REGISTER = "RegisterPlugin"
    CONFIGURE = "Configure"
    SYNCHRONIZE_PART = "part of Synchronize"
    SYNCHRONIZE_LAST = "Synchronize"
    HOOK = "a hook"
    CLOSE = "close"


# Hooks are served before Synchronize too: a refusal would let nothing run that an answer would not.
TRANSITIONS: Final[Mapping[State, Mapping[Input, State]]] = {
    State.NEW: {Input.REGISTER: State.REGISTERED, Input.CLOSE: State.CLOSED},
    State.REGISTERED: {Input.CONFIGURE: State.CONFIGURED, Input.CLOSE: State.CLOSED},
    State.CONFIGURED: {
        Input.SYNCHRONIZE_PART: State.CONFIGURED,
        Input.SYNCHRONIZE_LAST: State.SYNCHRONIZED,
        Input.HOOK: State.CONFIGURED,
        Input.CLOSE: State.CLOSED,
    },
    State.SYNCHRONIZED: {Input.HOOK: State.SYNCHRONIZED, Input.CLOSE: State.CLOSED},
    State.CLOSED: {Input.CLOSE: State.CLOSED},
}


class OutOfOrder(PreconditionFailed):
    """Raised when the runtime calls what it must not call in this state."""

    def __init__(self, event: Input, state: State) -> None:
        super().__init__(f"{event.value} in state {state.value}")


class Session:
    """One connection. Times are CLOCK_BOOTTIME in ns; `id` is when it registered and names it to dra-plugin."""

    def __init__(self) -> None:
        self.state = State.NEW
        self.id = 0
        self.runtime_name = ""
        self.runtime_version = ""
        self.synchronized_since = 0
        self._parts: list[VgpuContainer] = []

    def register(self, *, at_ns: int) -> None:
        self._advance(Input.REGISTER)
        self.id = at_ns

    def configure(self, *, runtime_name: str, runtime_version: str) -> int:
        """The mask of events to subscribe to.

        Raises:
            OutOfOrder: not between RegisterPlugin and Synchronize.
        """
        self._advance(Input.CONFIGURE)
        self.runtime_name = runtime_name
        self.runtime_version = runtime_version
        return EVENT_MASK

    def add_part(self, containers: tuple[VgpuContainer, ...]) -> None:
        """Takes a part that another follows.

        Raises:
            OutOfOrder: not between Configure and the last part.
        """
        self._advance(Input.SYNCHRONIZE_PART)
        self._parts.extend(containers)

    def finish(self, containers: tuple[VgpuContainer, ...], *, at_ns: int) -> tuple[VgpuContainer, ...]:
        """Takes the last, or only, part and gives the vGPU containers of all of them.

        Raises:
            OutOfOrder: not between Configure and the last part.
        """
        self._advance(Input.SYNCHRONIZE_LAST)
        whole = (*self._parts, *containers)
        self._parts.clear()
        self.synchronized_since = at_ns
        return whole

    def admit_hook(self) -> None:
        """Lets a hook pass.

        Raises:
            OutOfOrder: the runtime has not configured us, or the session is over.
        """
        self._advance(Input.HOOK)

    def close(self) -> None:
        self._advance(Input.CLOSE)

    def _advance(self, event: Input) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise OutOfOrder(event, self.state)
        self.state = following
