"""kubelet's podresources service, v1."""

from vgpu_proto._gen.podresources.podresources_pb2 import *  # noqa: F403
