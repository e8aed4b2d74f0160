"""NRI messages (google protobuf)."""

from vgpu_proto._gen.nri.nri_pb2 import *  # noqa: F403
