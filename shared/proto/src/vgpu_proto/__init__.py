"""Interface definitions and generated messages of the vGPU node stack."""
