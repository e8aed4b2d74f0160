"""What a process does with memory that it has no use for. Each in a process of its own: a collector and a heap are its whole."""

from __future__ import annotations

import subprocess
import sys

_GIVES_BACK = """
import ctypes
from pathlib import Path
from vgpu_daemon import memory

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

blocks = [libc.memset(libc.malloc(65536), 1, 65536) for _ in range(1024)]
last = libc.malloc(65536)  # without it the heap would end where the blocks did
full = resident_mib()
for block in blocks:
    libc.free(block)
freed = resident_mib()
memory.give_back()
print(full - freed, full - resident_mib())
"""

_KEEPS = """
import gc
import weakref
from vgpu_daemon import memory

class Node: pass

lives, lost = Node(), Node()
lost.itself = lost
ghost = weakref.ref(lost)
del lost
memory.keep_what_lives()
print(ghost() is None, any(o is lives for o in gc.get_objects()), gc.get_freeze_count() > 1000)
"""


def _printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30).stdout


def test_freed_pages_between_others_are_given_back() -> None:
    kept, given_back = map(int, _printed(_GIVES_BACK).split())

    assert kept <= 1
    assert given_back >= 60  # of 64 MiB


def test_what_lives_is_not_walked_again_and_what_is_lost_is_freed_first() -> None:
    assert _printed(_KEEPS) == "True False True\n"
