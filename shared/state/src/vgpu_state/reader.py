"""A read-only look at the claims/ tree: the one place of this package that touches files.

Every open is O_NOFOLLOW and bounded, and what is being made or thrown away (names that begin with a dot) is never seen.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from vgpu_state import bindings, ids, records
from vgpu_state.claims import Binding, ClaimRecord, ClaimRef
from vgpu_state.errors import MalformedInput, StorageFailed
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_state.layout import Layout


class Stamp(NamedTuple):
    """By what a directory shows that something in it came, went or was renamed into place: which one it is, and its mtime."""

    inode: int
    changed_ns: int


class ClaimsReader:
    """Records and bindings of one manager directory. Holds no state: every call looks at the disk."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def claim_uids(self) -> list[ClaimUid]:
        """Claims that have a directory, in ascending order; [] when there is no tree yet."""
        return [uid for name in self._names(self._layout.claims) if (uid := _claim_uid(name)) is not None]

    def partitions(self, uid: ClaimUid) -> list[PartitionName]:
        """Partitions of a claim, in ascending order; [] when the claim is gone."""
        return [p for name in self._names(self._layout.claim(uid)) if (p := _partition(name)) is not None]

    def record(self, uid: ClaimUid) -> ClaimRecord | None:
        """The claim's record, None when there is no file.

        Raises:
            RecordUnusable: the file is corrupt or too new.
            StorageFailed: it cannot be read.
        """
        raw = read_file(self._layout.record(uid), limit=records.MAX_BYTES)
        return None if raw is None else records.decode_record(raw)

    def claim_ref(self, uid: ClaimUid) -> ClaimRef | None:
        """Which claim this is, by a record that may be unusable otherwise; None when it does not even say that."""
        try:
            raw = read_file(self._layout.record(uid), limit=records.MAX_BYTES)
        except StorageFailed:
            return None
        claim = None if raw is None else records.decode_claim_ref(raw)
        return claim if claim is not None and claim.uid == uid else None

    def binding(self, uid: ClaimUid, partition: PartitionName) -> Binding | None:
        """Who holds the partition, None when there is no file.

        Raises:
            BindingUnusable: the file is corrupt.
            StorageFailed: it cannot be read.
        """
        raw = read_file(self._layout.binding(uid, partition), limit=bindings.MAX_BYTES)
        return None if raw is None else bindings.decode_binding(raw)

    def _names(self, path: PurePosixPath) -> Iterator[str]:
        try:
            with os.scandir(path) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as exc:
            raise StorageFailed(action="list", path=str(path), error=exc) from exc
        return iter(names)


def directory_stamp(path: str) -> Stamp | None:
    """The stamp of the directory at `path`, None when there is none.

    Raises:
        StorageFailed: the kernel refused.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise StorageFailed(action="stat", path=path, error=exc) from exc
    return Stamp(status.st_ino, status.st_mtime_ns)


def read_file(path: PurePosixPath, *, limit: int) -> bytes | None:
    """The bytes of a regular file of at most `limit` bytes, None when it does not exist. Never follows a link at `path`.

    Raises:
        StorageFailed: the kernel refused, or `path` is a link, no regular file, or larger.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StorageFailed(action="read", path=str(path), error=exc) from exc
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise OSError(errno.EINVAL, f"no regular file of at most {limit} bytes")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(limit + 1)
    except OSError as exc:
        raise StorageFailed(action="read", path=str(path), error=exc) from exc
    finally:
        os.close(fd)


def _claim_uid(name: str) -> ClaimUid | None:
    try:
        return ids.parse_claim_uid(name)
    except MalformedInput:
        return None


def _partition(name: str) -> PartitionName | None:
    try:
        return ids.parse_partition_name(name)
    except MalformedInput:
        return None
