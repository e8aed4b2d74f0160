"""kubelet's DRA health stream, v1."""

from vgpu_proto._gen.dra_health_v1.v1 import *  # noqa: F403
