"""CRI runtime.v1, the part a test client needs."""

from vgpu_proto._gen.cri.runtime.v1 import *  # noqa: F403
