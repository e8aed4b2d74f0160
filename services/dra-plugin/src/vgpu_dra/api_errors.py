"""Why the API server did not do what it was asked, one class per reaction."""

from __future__ import annotations

from vgpu_state.errors import VgpuError


class ApiAway(VgpuError):
    """Raised when the API server cannot be reached, is overloaded or broke off. It will be back."""


class ApiRefused(VgpuError):
    """Raised when the API server understood and said no: an invalid object, a missing permission. Someone must act.

    `status` is the HTTP status, `reason` what the API server said.
    """

    def __init__(self, request: str, *, status: int, reason: str) -> None:
        super().__init__(f"the API server refused {request}: {status} {reason}")
        self.status = status
        self.reason = reason


class ApiNotFound(ApiRefused):
    """Raised when there is no such object (404)."""


class ApiConflict(ApiRefused):
    """Raised when the object is another one by now: a resourceVersion, a uid or a name has been overtaken (409)."""


class ApiExpired(ApiRefused):
    """Raised when the API server no longer has the changes since a resourceVersion (410): list anew."""
