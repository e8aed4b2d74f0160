"""Domain error ↔ gRPC status, both ways. The one table of what a refusal is on the wire."""

from __future__ import annotations

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_state import errors

_STATUS_BY_ERROR: dict[type[errors.VgpuError], Status] = {
    errors.MalformedInput: Status.INVALID_ARGUMENT,
    errors.PermissionRefused: Status.PERMISSION_DENIED,
    errors.PreconditionFailed: Status.FAILED_PRECONDITION,
    errors.Superseded: Status.ABORTED,
    errors.NotReady: Status.UNAVAILABLE,
    errors.StorageFailed: Status.INTERNAL,
}


def to_grpc(error: errors.VgpuError) -> GRPCError:
    """The status and sentence that leave the process; INTERNAL for a class that the table does not have."""
    for kind, status in _STATUS_BY_ERROR.items():
        if isinstance(error, kind):
            return GRPCError(status, str(error))
    return GRPCError(Status.INTERNAL, str(error))


class PeerFailed(errors.VgpuError):
    """Raised when the other process answered INTERNAL or UNKNOWN: its own log says why."""


class MethodUnknown(PeerFailed):
    """Raised when the other process has no such method: it is of an older version than this one."""


def from_grpc(error: GRPCError) -> errors.VgpuError:
    """The domain error that the other side raised, with its sentence."""
    message = error.message or error.status.name
    for kind, status in _STATUS_BY_ERROR.items():
        if status is error.status and kind is not errors.StorageFailed:
            return kind(message)
    if error.status in (Status.DEADLINE_EXCEEDED, Status.CANCELLED, Status.RESOURCE_EXHAUSTED):
        return errors.NotReady(message)
    return MethodUnknown(message) if error.status is Status.UNIMPLEMENTED else PeerFailed(message)
