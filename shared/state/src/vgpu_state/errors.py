"""The domain's refusals: one class per reaction a caller can have, not per place where they arise.

`vgpu_daemon.grpc_status` maps each to its gRPC status; nothing else knows that table. Messages are for a person: what was
found, in which claim, container or field, what is allowed, what to do.
"""

from __future__ import annotations


class VgpuError(Exception):
    """The root of everything this project raises on purpose."""


class MalformedInput(VgpuError):
    """Raised when a name, uid or message is not of its form. Repeating the call cannot help."""


class PermissionRefused(VgpuError):
    """Raised when the caller, or the grant it shows, has no right to what it asks for."""


class PreconditionFailed(VgpuError):
    """Raised when something else holds what is asked for. It can succeed once that has gone."""


class Superseded(VgpuError):
    """Raised when a runtime id asks for what it has lost: it was released, or a newer container took its place."""


class NotReady(VgpuError):
    """Raised when the answer is "not now": starting, waiting for the writer lock, draining. Ask again."""


class StorageFailed(VgpuError):
    """Raised when the file system refused: disk full, read-only, I/O error. Carries the path and the errno's name."""

    def __init__(self, *, action: str, path: str, error: OSError) -> None:
        import errno

        name = errno.errorcode.get(error.errno or 0, "EIO")
        super().__init__(f"cannot {action} {path}: {name} ({error.strerror})")
        self.path = path
        self.errno_name = name
