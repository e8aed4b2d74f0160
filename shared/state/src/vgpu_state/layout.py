"""Every path under the manager directory, as one view of it sees them.

The agent view is what our processes open; the host view is what the runtime needs as a mount source. Both are the same
directory, which dra-plugin checks at start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from vgpu_state.ids import ClaimUid, PartitionName

RECORD = "claim.json"
BINDING = "binding.json"
CONFIG = "config"
LIMITS = "vgpu.config"
PIDS = "pids.config"
TEMPORARY_PREFIX = ".new-"  # unfinished work of a writer that died: never read, removed at the next start
TRASH = ".trash"
WRITER_LOCK = ".writer"
POISON = "created-without-nri"
LIBRARY_PREFIX = "libvgpu-control.so."  # the version follows; several may lie side by side


@dataclass(frozen=True, slots=True)
class Layout:
    """One view of the manager directory M, by the path it has there."""

    root: PurePosixPath

    @property
    def claims(self) -> PurePosixPath:
        return self.root / "claims"

    @property
    def writer_lock(self) -> PurePosixPath:
        return self.claims / WRITER_LOCK

    @property
    def trash(self) -> PurePosixPath:
        return self.claims / TRASH

    @property
    def skeleton(self) -> PurePosixPath:
        return self.root / "skeleton"

    @property
    def health(self) -> PurePosixPath:
        """What dra-plugin knows of the health of the GPUs."""
        return self.root / "health.json"

    @property
    def registry(self) -> PurePosixPath:
        return self.root / "registry"

    @property
    def registry_socket(self) -> PurePosixPath:
        return self.registry / "socket.sock"

    @property
    def device_client(self) -> PurePosixPath:
        return self.registry / "device-client"

    @property
    def preload_list(self) -> PurePosixPath:
        return self.root / "ld.so.preload"

    def library(self, version: str) -> PurePosixPath:
        return self.root / f"{LIBRARY_PREFIX}{version}"

    def claim(self, uid: ClaimUid) -> PurePosixPath:
        return self.claims / uid

    def record(self, uid: ClaimUid) -> PurePosixPath:
        return self.claim(uid) / RECORD

    def poison(self, uid: ClaimUid) -> PurePosixPath:
        """A source that never exists: a container of a lazy claim that NRI did not adjust cannot start with it."""
        return self.claim(uid) / POISON

    def partition(self, uid: ClaimUid, name: PartitionName) -> PurePosixPath:
        return self.claim(uid) / name

    def binding(self, uid: ClaimUid, name: PartitionName) -> PurePosixPath:
        return self.partition(uid, name) / BINDING

    def config(self, uid: ClaimUid, name: PartitionName) -> PurePosixPath:
        return self.partition(uid, name) / CONFIG

    def limits(self, uid: ClaimUid, name: PartitionName) -> PurePosixPath:
        return self.config(uid, name) / LIMITS

    def pids(self, uid: ClaimUid, name: PartitionName) -> PurePosixPath:
        return self.config(uid, name) / PIDS
