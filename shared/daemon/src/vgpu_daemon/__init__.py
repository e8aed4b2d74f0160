"""Process plumbing of the vGPU daemons."""
