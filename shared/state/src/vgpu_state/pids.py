"""bytes ↔ the PID list pids.config, as the enforcement library reads it.

Source: vgpu-manager, library/src/util.c: the list is searched by halves, and an empty one stops the container's process.
"""

from __future__ import annotations

from collections.abc import Collection

from vgpu_state.errors import MalformedInput

MAX_PIDS = 1000  # the library reads 1024


def encode_pids(pids: Collection[int]) -> bytes:
    """ASCII decimal host PIDs, ascending, each once, one per line, each line ended by LF.

    Raises:
        MalformedInput: no PID at all, more than 1000, or one that is no PID.
    """
    unique = sorted(set(pids))
    if not unique:
        raise MalformedInput("a PID list is empty; the library would stop the container's process")
    if len(unique) > MAX_PIDS:
        raise MalformedInput(f"a PID list has {len(unique)} entries; the library reads at most {MAX_PIDS}")
    if unique[0] <= 0 or unique[-1] > 0x7FFFFFFF:
        raise MalformedInput("a PID list holds a number that is no PID")
    return b"".join(b"%d\n" % pid for pid in unique)


def decode_pids(raw: bytes) -> tuple[int, ...]:
    """The PIDs of a list; what is no PID is skipped, as the library does."""
    return tuple(int(line) for line in raw.split() if line.isdigit() and int(line) > 0)
