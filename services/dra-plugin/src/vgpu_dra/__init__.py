"""Serves kubelet; sole writer of the claims/ tree."""
