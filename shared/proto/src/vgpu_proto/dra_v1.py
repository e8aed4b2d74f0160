"""kubelet's DRA node service, v1."""

from vgpu_proto._gen.dra_v1.k8s.io.kubelet.pkg.apis.dra.v1 import *  # noqa: F403
