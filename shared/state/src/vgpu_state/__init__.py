"""The claims/ tree: values, codecs and the read-only reader."""
