"""Gives each container its partition in the runtime's create path."""
