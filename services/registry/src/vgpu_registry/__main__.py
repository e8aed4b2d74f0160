"""`python -m vgpu_registry`."""

from vgpu_registry.app import main

main()
