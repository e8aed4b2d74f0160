"""ttrpc without I/O: bytes in, events out; calls in, bytes out."""
