"""How the stand-in runtime says no: containerd's codes and words, as a CRI client sees them."""

from __future__ import annotations

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import oci
from vgpu_testkit.nri_plugin_link import PluginRefused
from vgpu_testkit.runtime_images import ImageNotFound
from vgpu_testkit.runtime_process import ProcessRefused

_RUNC_CREATE = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
_PROCESS = "unable to start container process: "


class RuntimeRefused(GRPCError):
    """Raised for a call that the runtime refuses; caught where GRPCError of a real runtime's client is."""

    def __init__(self, code: Status, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.text = message


def of_create(exc: Exception) -> RuntimeRefused:
    """Of a container that cannot be made."""
    failed = "failed to create containerd container: "
    match exc:
        case RuntimeRefused():
            return exc
        case PluginRefused():
            return RuntimeRefused(exc.code, f"{failed}failed to get NRI adjustment for container: {exc}")
        case ImageNotFound():
            return RuntimeRefused(Status.NOT_FOUND, str(exc))
        case oci.RefusedConfig():
            return RuntimeRefused(Status.UNKNOWN, f"{failed}CDI device injection failed: {exc}")
        case _:
            raise exc


def of_start(exc: PluginRefused | ProcessRefused, *, suffix: str) -> RuntimeRefused:
    """Of a container that cannot be started; containerd 1.7 ends runc's text with a suffix."""
    if isinstance(exc, PluginRefused):
        return RuntimeRefused(exc.code, f"NRI container start failed: {exc}")
    where = "error during container init: " if str(exc).startswith("error mounting") else ""
    return RuntimeRefused(Status.UNKNOWN, f"{_RUNC_CREATE}{_PROCESS}{where}{exc}{suffix}")


def of_exec(exc: ProcessRefused) -> RuntimeRefused:
    """Of a program that cannot be run in a container."""
    text = f"failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: {_PROCESS}{exc}"
    return RuntimeRefused(Status.UNKNOWN, text)


def of_late_exec(timeout_s: float) -> RuntimeRefused:
    """Of a program that did not end in time."""
    text = f"failed to exec in container: timeout {timeout_s}s exceeded: context deadline exceeded"
    return RuntimeRefused(Status.DEADLINE_EXCEEDED, text)
