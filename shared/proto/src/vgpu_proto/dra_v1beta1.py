"""kubelet's DRA node service, v1beta1."""

from vgpu_proto._gen.dra_v1beta1.k8s.io.kubelet.pkg.apis.dra.v1beta1 import *  # noqa: F403
