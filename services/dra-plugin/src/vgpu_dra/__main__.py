"""python -m vgpu_dra."""

from vgpu_dra.app import main

main()
