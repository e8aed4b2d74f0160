"""Protobuf and betterproto messages for grpclib, where bytes that are no message are the caller's fault."""

from __future__ import annotations

from typing import Any

from grpclib.const import Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError


class StrictCodec(ProtoCodec):
    """Protobuf and betterproto messages; bytes that are none are the caller's fault, not ours."""

    def decode(self, data: bytes, message_type: Any) -> Any:  # Any: grpclib's own signature
        try:
            return super().decode(data, message_type)
        except Exception as exc:  # codecs raise whatever their parser raises
            raise GRPCError(Status.INVALID_ARGUMENT, f"{message_type.__name__} is malformed") from exc
