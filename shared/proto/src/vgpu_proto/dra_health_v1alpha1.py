"""kubelet's DRA health stream, v1alpha1."""

from vgpu_proto._gen.dra_health_v1alpha1.v1alpha1 import *  # noqa: F403
