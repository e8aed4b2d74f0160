"""The main job, shown: claims for slices of GPUs become limits inside containers."""
