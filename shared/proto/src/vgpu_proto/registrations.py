"""registry to dra-plugin: vgpu.registrations.v1."""

from vgpu_proto._gen.registrations.vgpu.registrations.v1 import *  # noqa: F403
