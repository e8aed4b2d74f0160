"""The cores and the hooks on bytes that containerd sent: what is understood, asked of dra-plugin and answered."""

from __future__ import annotations

import pytest

from vgpu_nri import mux, wire
from vgpu_nri.containers import Adjustment, ContainerState, DeviceRule, Stage, VgpuContainer
from vgpu_nri.ledger import Ledger
from vgpu_nri.plugin_service import Notices, PluginService, Surroundings
from vgpu_nri.session import PLUGIN_INDEX, PLUGIN_NAME, Session, State
from vgpu_nri.telemetry import Telemetry
from vgpu_nri.ttrpc.connection import ClientConnection, ServerConnection
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.ttrpc.events import ClientEvent, RequestReceived, ResponseReceived, ServerEvent
from vgpu_proto import nri
from vgpu_state.container_abi import Mount
from vgpu_state.errors import PreconditionFailed
from vgpu_testkit import recording
from vgpu_testkit.recording import Direction, Recording

_NAMES = recording.recording_names()
_LIFE = [("ensure", ""), ("record_start", "pid"), ("release", "stopped"), ("release", "removed")]
_ASKED = {
    "registration": [],
    "synchronize": [],
    "foreign": [],
    "all-events": [],
    "vgpu": _LIFE,
    "refused-create": [_LIFE[0], *_LIFE[2:]],
    "refused-start": _LIFE,
}


class _RecordedPartitions:
    """A dra-plugin that answers each hook as the plugin of the recording did."""

    def __init__(self, recorded: Recording) -> None:
        self.asked: list[tuple[str, str]] = []
        self.containers: list[VgpuContainer] = []
        self._create = next((call.response for call in recorded.calls() if call.request.method == "CreateContainer"), None)
        self._start = next(
            (
                call.response
                for call in recorded.calls()
                if call.request.method == "StateChange"
                and nri.StateChangeEvent.FromString(call.request.payload).event == nri.START_CONTAINER
            ),
            None,
        )

    async def ensure(self, container: VgpuContainer, *, session_id: int, deadline_s: float) -> Adjustment:
        self.asked.append(("ensure", ""))
        self.containers.append(container)
        assert self._create is not None
        if self._create.code:
            raise PreconditionFailed(self._create.message)
        adjust = nri.CreateContainerResponse.FromString(self._create.payload).adjust
        return Adjustment(
            mounts=tuple(
                Mount(destination=m.destination, source=m.source, type=m.type, options=tuple(m.options)) for m in adjust.mounts
            ),
            env=tuple((variable.key, variable.value) for variable in adjust.env),
            claim_uid="",
            partition="",
        )

    async def record_start(self, container: VgpuContainer, *, unplaced_in: int | None, deadline_s: float) -> None:
        self.asked.append(("record_start", "pid" if container.pid > 1 else "none"))
        assert self._start is not None
        if self._start.code:
            raise PreconditionFailed(self._start.message)

    async def release(self, runtime_id: str, stage: Stage, *, deadline_s: float) -> None:
        assert runtime_id == self.containers[0].runtime_id
        self.asked.append(("release", stage.value))


def _incoming(recorded: Recording, *, piece: int) -> tuple[list[ServerEvent], list[ClientEvent]]:
    """Everything the runtime sent, through the cores in pieces of that many bytes."""
    trunk, server, client = mux.Reader(), ServerConnection(), ClientConnection()
    client.send_request(Request(method="RegisterPlugin"))
    data = recorded.bytes_of(Direction.IN)
    asked: list[ServerEvent] = []
    answered: list[ClientEvent] = []
    for at in range(0, len(data), piece):
        for chunk in trunk.receive_data(data[at : at + piece]):
            if chunk.conn_id == mux.PLUGIN_CONN:
                asked.extend(server.receive_data(chunk.data))
            else:
                answered.extend(client.receive_data(chunk.data))
    return asked, answered


async def _play(recorded: Recording, partitions: _RecordedPartitions, ledger: Ledger) -> tuple[Session, list[Response]]:
    session = Session()
    session.register(at_ns=1)
    surroundings = Surroundings(
        partitions=partitions, ledger=ledger, telemetry=Telemetry(), clock=lambda: 0.0, boottime_ns=lambda: 2
    )
    notices = Notices(synchronized=lambda: None, late=lambda: None, shutdown=lambda: None)
    service = PluginService(session, surroundings=surroundings, notices=notices)
    answers = []
    for event in _incoming(recorded, piece=65536)[0]:
        assert isinstance(event, RequestReceived)
        answer = service.serve(event.request)
        answers.append(answer if isinstance(answer, Response) else await answer())
    return session, answers


@pytest.mark.parametrize("name", _NAMES)
def test_cores_understand_every_byte_alike_in_pieces_of_any_size(name: str) -> None:
    recorded = recording.load_recording(name)

    whole = _incoming(recorded, piece=1 << 30)

    assert whole == _incoming(recorded, piece=1) == _incoming(recorded, piece=4096)
    assert whole[1] == [ResponseReceived(1, Response())]
    assert [event.request.method for event in whole[0] if isinstance(event, RequestReceived)] == [
        call.request.method for call in recorded.calls() if call.direction is Direction.IN
    ]


@pytest.mark.parametrize("name", _NAMES)
async def test_hooks_ask_and_answer_as_the_runtime_was_seen_to_accept(name: str) -> None:
    recorded = recording.load_recording(name)
    partitions = _RecordedPartitions(recorded)
    accepted = [call.response for call in recorded.calls() if call.direction is Direction.IN]

    session, answers = await _play(recorded, partitions, Ledger())

    assert partitions.asked == _ASKED[name.partition("/")[2]]
    assert session.state is State.SYNCHRONIZED
    assert session.runtime_name == "containerd"
    assert [answer.code for answer in answers] == [answer.code for answer in accepted]
    assert all(answer.message.endswith(theirs.message) for answer, theirs in zip(answers, accepted, strict=True))
    # That recording's plugin subscribed to all events; ours never does.
    first = 1 if name.endswith("all-events") else 0
    assert [nri.CreateContainerResponse.FromString(answer.payload) for answer in answers[first:]] == [
        nri.CreateContainerResponse.FromString(answer.payload) for answer in accepted[first:]
    ]


@pytest.mark.parametrize("name", [name for name in _NAMES if name.endswith("registration")])
def test_registration_is_the_message_that_the_runtime_accepted(name: str) -> None:
    recorded = recording.load_recording(name)

    (register,) = [call.request for call in recorded.calls() if call.direction is Direction.OUT]

    assert register.service == wire.RUNTIME_SERVICE
    assert register.method == "RegisterPlugin"
    assert register.payload == wire.encode_register(PLUGIN_NAME, PLUGIN_INDEX)


@pytest.mark.parametrize("name", [name for name in _NAMES if name.endswith("synchronize")])
async def test_synchronize_of_a_real_node_shows_the_one_vgpu_container_with_its_pid_and_pod(name: str) -> None:
    ledger = Ledger()

    await _play(recording.load_recording(name), _RecordedPartitions(recording.load_recording(name)), ledger)

    (held,) = ledger.live.values()
    assert (held.container.name, held.container.pod.namespace, held.container.state) == (
        "train",
        "team-a",
        ContainerState.RUNNING,
    )
    assert held.container.pid > 1
    assert "/etc/vgpu-manager/config" in {mount.destination for mount in held.container.mounts}


@pytest.mark.parametrize("name", [name for name in _NAMES if name.endswith("/vgpu")])
async def test_create_of_a_real_runtime_shows_all_that_dra_plugin_judges(name: str) -> None:
    partitions = _RecordedPartitions(recording.load_recording(name))

    await _play(recording.load_recording(name), partitions, Ledger())

    (container,) = partitions.containers
    assert len(container.runtime_id) == 64
    assert (container.pod.uid, container.pod.namespace, container.pod.name) == (
        "0b7e4a1c-2f63-4d0e-9b5a-000000000000",
        "team-a",
        "pod-0",
    )
    assert [device.path for device in container.devices] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert container.device_rules[0] == DeviceRule(is_allowed=False, type="", major=None, minor=None)
    assert container.cgroup_path.endswith(container.runtime_id)
    assert [key for key, _ in container.grants] == ["0123456789abcdef"]
