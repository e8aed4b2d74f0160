"""Text from outside → identifiers, or a refusal. Nothing else may build a path segment or a CDI name.

Every `parse_*` accepts exactly one spelling, so that an identifier is safe as a path segment: no slash, no dot-dot, no NUL,
no newline, a bounded length.
"""

from __future__ import annotations

import re
from typing import NewType

from vgpu_state.errors import MalformedInput

ClaimUid = NewType("ClaimUid", str)
PodUid = NewType("PodUid", str)
ContainerName = NewType("ContainerName", str)
RequestName = NewType("RequestName", str)
DeviceName = NewType("DeviceName", str)
PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
ShareId = NewType("ShareId", str)
RuntimeId = NewType("RuntimeId", str)
GpuUuid = NewType("GpuUuid", str)
MigUuid = NewType("MigUuid", str)
PartitionName = NewType("PartitionName", str)
GrantKey = NewType("GrantKey", str)
Nonce = NewType("Nonce", str)
RegisterUuid = NewType("RegisterUuid", str)

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"

# \Z and not $: the latter lets a trailing newline through.
_UUID_FORM = re.compile(rf"{_UUID}\Z")
_LABEL_FORM = re.compile(rf"{_LABEL}\Z")
_REQUEST_FORM = re.compile(rf"{_LABEL}(?:/{_LABEL})?\Z")
_NODE_FORM = re.compile(rf"{_SUBDOMAIN}\Z")
_POOL_FORM = re.compile(rf"{_SUBDOMAIN}(?:/{_SUBDOMAIN})*\Z")
_RUNTIME_ID_FORM = re.compile(r"[0-9a-f]{64}\Z")
_GPU_FORM = re.compile(rf"GPU-{_UUID}\Z")
_MIG_FORM = re.compile(rf"MIG-{_UUID}\Z")
_PARTITION_FORM = re.compile(rf"(?:{_UUID}_{_LABEL}|cg-[0-9a-f]{{12}})\Z")
_KEY_FORM = re.compile(r"[0-9a-f]{16}\Z")
_NONCE_FORM = re.compile(r"[0-9a-f]{32}\Z")

_SHOWN = 80


def shown(text: str) -> str:
    """`text` as it may stand in a message: quoted, control characters escaped, cut at 80 characters."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _match(form: re.Pattern[str], text: str, *, field: str, allowed: str, limit: int = 253) -> str:
    if len(text) > limit or form.match(text) is None:
        raise MalformedInput(f"{field} is {shown(text)}; expected {allowed}")
    return text


def parse_claim_uid(text: str) -> ClaimUid:
    return ClaimUid(_match(_UUID_FORM, text, field="claim uid", allowed="a lower-case UUID"))


def parse_pod_uid(text: str) -> PodUid:
    return PodUid(_match(_UUID_FORM, text, field="pod uid", allowed="a lower-case UUID (static pods have none)"))


def parse_container_name(text: str) -> ContainerName:
    return ContainerName(_match(_LABEL_FORM, text, field="container name", allowed="a DNS label of at most 63 characters"))


def parse_request_name(text: str) -> RequestName:
    """A request of a claim: `main`, or `main/sub` for one of its alternatives."""
    return RequestName(_match(_REQUEST_FORM, text, field="request name", allowed="a DNS label, or two joined by a slash"))


def parse_device_name(text: str) -> DeviceName:
    return DeviceName(_match(_LABEL_FORM, text, field="device name", allowed="a DNS label of at most 63 characters"))


def parse_pool_name(text: str) -> PoolName:
    return PoolName(_match(_POOL_FORM, text, field="pool name", allowed="DNS subdomains joined by slashes"))


def parse_node_name(text: str) -> NodeName:
    return NodeName(_match(_NODE_FORM, text, field="node name", allowed="a DNS subdomain in lower case"))


def parse_share_id(text: str) -> ShareId:
    """A share's id; "" where the device is not shared."""
    return ShareId(text and _match(_UUID_FORM, text, field="shareID", allowed="a lower-case UUID, or nothing"))


def parse_runtime_id(text: str) -> RuntimeId:
    return RuntimeId(_match(_RUNTIME_ID_FORM, text, field="runtime container id", allowed="64 lower-case hex digits"))


def parse_gpu_uuid(text: str) -> GpuUuid:
    """A GPU's UUID as NVML spells it. The enforcement library compares bytes, so upper-case hex digits are refused."""
    return GpuUuid(_match(_GPU_FORM, text, field="GPU UUID", allowed="GPU- and a lower-case UUID"))


def parse_mig_uuid(text: str) -> MigUuid:
    """A MIG device's UUID as NVML spells it since driver 470."""
    return MigUuid(_match(_MIG_FORM, text, field="MIG UUID", allowed="MIG- and a lower-case UUID"))


def parse_grant_key(text: str) -> GrantKey:
    return GrantKey(_match(_KEY_FORM, text, field="grant key", allowed="16 lower-case hex digits"))


def parse_nonce(text: str) -> Nonce:
    """A grant's secret. The message says only how long the text was."""
    if _NONCE_FORM.match(text) is None:
        raise MalformedInput(f"grant nonce of {len(text)} characters; expected 32 lower-case hex digits")
    return Nonce(text)


def parse_register_uuid(text: str) -> RegisterUuid:
    """The UUID by which the containers of an eagerly made partition register. The message does not repeat it."""
    if _UUID_FORM.match(text) is None:
        raise MalformedInput(f"register uuid of {len(text)} characters; expected a lower-case UUID")
    return RegisterUuid(text)


def partition_name(pod_uid: PodUid, container: ContainerName) -> PartitionName:
    """The directory of one container's private state within a claim, where it is made for that container."""
    return PartitionName(f"{pod_uid}_{container}")


def component_name(digest: str) -> PartitionName:
    """The directory of a partition that was made at Prepare, by the hex digest over what shares it."""
    return PartitionName(f"cg-{digest[:12]}")


def parse_partition_name(text: str) -> PartitionName:
    return PartitionName(
        _match(
            _PARTITION_FORM, text, field="partition", allowed="<pod uid>_<container name>, or cg- and 12 hex digits", limit=100
        )
    )


def main_request(request: RequestName) -> RequestName:
    """The name kubelet knows a request by: without the alternative that was taken."""
    return RequestName(request.partition("/")[0])
