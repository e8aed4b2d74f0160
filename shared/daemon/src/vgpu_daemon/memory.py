"""Memory of a process that lives for weeks: what stays is not walked again, what went is given back."""

from __future__ import annotations

import ctypes
import gc


def keep_what_lives() -> None:
    """Every object of now is left out of all collections to come; what nobody refers to goes first.

    For after a start: imports leave a hundred thousand objects that stay for life, and each full collection would walk them while
    everything waits. Not for later: of what is under way then, a cycle would never be freed.
    """
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """The kernel has the pages that the C library keeps although nothing is in them.

    For after a message of megabytes: its parts are freed in pieces, between others that stay, and glibc by itself returns no
    page but those at the end of its heap. Takes half a millisecond.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; another library has its own way
    if trim is not None:
        trim(0)
