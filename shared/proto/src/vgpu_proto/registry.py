"""device-client to registry: the RPC of the enforcement library's client."""

from vgpu_proto._gen.registry.registry import *  # noqa: F403
