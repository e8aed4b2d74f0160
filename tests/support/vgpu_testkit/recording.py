"""Bytes that a real runtime and a plugin exchanged on the NRI socket, kept as fixtures.

Owns the file format and the reading of calls from it. `python -m vgpu_testkit.record` makes the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Frame, Request, Response

_FIXTURES = Path(__file__).parents[2] / "fixtures/nri"


class Direction(StrEnum):
    """As the plugin sees it."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one read from the socket returned, or one write gave to it."""

    t_ms: int
    direction: Direction
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request and its answer; IN is a call of the runtime to the plugin."""

    direction: Direction
    stream: int
    request: Request
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One connection from its opening to its end."""

    name: str
    chunks: tuple[Chunk, ...]

    def bytes_of(self, direction: Direction) -> bytes:
        """All bytes of one direction."""
        return b"".join(chunk.data for chunk in self.chunks if chunk.direction is direction)

    def frames(self) -> tuple[tuple[Direction, Frame], ...]:
        """The messages of both directions in the order of their last bytes."""
        deframers = {direction: nri_frames.Deframer() for direction in Direction}
        return tuple((chunk.direction, frame) for chunk in self.chunks for frame in deframers[chunk.direction].feed(chunk.data))

    def calls(self) -> tuple[Call, ...]:
        """The calls that were answered, in the order of their requests."""
        answers = {
            (frame.connection, frame.stream): nri_frames.decode_response(frame.body)
            for _, frame in self.frames()
            if frame.type == nri_frames.RESPONSE
        }
        return tuple(
            Call(
                direction=direction,
                stream=frame.stream,
                request=nri_frames.decode_request(frame.body),
                response=answers[frame.connection, frame.stream],
            )
            for direction, frame in self.frames()
            if frame.type == nri_frames.REQUEST and (frame.connection, frame.stream) in answers
        )

    def requests(self, method: str) -> tuple[bytes, ...]:
        """The payloads of the runtime's calls of one method."""
        return tuple(
            call.request.payload for call in self.calls() if call.direction is Direction.IN and call.request.method == method
        )


def recording_names() -> tuple[str, ...]:
    """The names of all recordings, as "1.7/registration"."""
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in _FIXTURES.glob("*/*.json")))


def load_recording(name: str) -> Recording:
    """The recording of that name, as "1.7/registration"."""
    entries = json.loads((_FIXTURES / f"{name}.json").read_text())
    return Recording(
        name=name,
        chunks=tuple(
            Chunk(t_ms=entry["t_ms"], direction=Direction(entry["dir"]), data=bytes.fromhex(entry["hex"])) for entry in entries
        ),
    )


def save_recording(folder: Path, recording: Recording) -> None:
    """Writes a recording below `folder`, a chunk a line."""
    lines = [json.dumps({"t_ms": chunk.t_ms, "dir": chunk.direction, "hex": chunk.data.hex()}) for chunk in recording.chunks]
    path = folder / f"{recording.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
