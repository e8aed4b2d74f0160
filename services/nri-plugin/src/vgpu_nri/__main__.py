"""Runs the process as `python -m vgpu_nri`."""

from vgpu_nri.app import main

main()
