"""Lets the enforcement library inside a container register its PIDs."""
