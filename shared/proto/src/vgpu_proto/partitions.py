"""nri-plugin to dra-plugin: vgpu.partitions.v1 (google protobuf)."""

from vgpu_proto._gen.partitions.partitions_pb2 import *  # noqa: F403
