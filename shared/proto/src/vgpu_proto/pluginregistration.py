"""kubelet's plugin registration."""

from vgpu_proto._gen.pluginregistration.pluginregistration import *  # noqa: F403
