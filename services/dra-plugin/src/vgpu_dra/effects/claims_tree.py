"""The claims/ tree on disk and the CDI files beside it: every change of either is one of these steps.

Knows the layout and the order of steps; decides nothing. `policy.recovery` says what an interruption may have left.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from vgpu_dra import cdi
from vgpu_dra.effects import durable
from vgpu_state import bindings, layout, records
from vgpu_state.bindings import BindingUnusable
from vgpu_state.claims import Binding, ClaimRecord, PodRef
from vgpu_state.errors import StorageFailed
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_state.layout import Layout
from vgpu_state.reader import read_file
from vgpu_state.records import RecordUnusable

_CLAIM_MODE = 0o711
_CONFIG_MODE = 0o755
_CONFIG_FILE_MODE = 0o644
_PRIVATE_MODE = 0o600
_MAX_CDI_BYTES = 4 << 20


class ClaimsTree:
    """Writes below one manager directory and one CDI directory. The caller holds the writer lock and the claim's own."""

    def __init__(self, agent: Layout, cdi_dir: Path) -> None:
        self._agent = agent
        self._cdi_dir = cdi_dir

    def make_skeleton(self) -> None:
        """The empty mount points that containers get at the manager directory's place, and the tree's own directories.

        Raises:
            StorageFailed: naming the path and the errno.
        """
        root = Path(self._agent.root)
        skeleton = Path(self._agent.skeleton)
        for path, mode in (
            (root, 0o755),
            (Path(self._agent.claims), _CLAIM_MODE),
            (Path(self._agent.trash), 0o700),
            (Path(self._agent.registry), 0o711),
            (self._cdi_dir, 0o755),
            (skeleton, 0o755),
            *((skeleton / name, 0o755) for name in ("config", "registry", "driver", ".host_proc", "watcher")),
        ):
            durable.make_directory(path, mode=mode)
        library = skeleton / "driver" / "libvgpu-control.so"
        if not library.exists():
            durable.write_new_file(library, b"", mode=0o644)

    def write_record(self, record: ClaimRecord) -> None:
        """The claim's directory and record, durable."""
        directory = Path(self._agent.claim(record.claim.uid))
        if not directory.is_dir():
            durable.make_directory(directory, mode=_CLAIM_MODE)
            durable.sync_directory(directory.parent)
        durable.replace_file(directory / layout.RECORD, records.encode_record(record), mode=_PRIVATE_MODE)

    def write_spec(self, uid: ClaimUid, spec: bytes) -> bool:
        """The claim's CDI file; whether it had to be written."""
        path = Path(cdi.spec_path(PurePosixPath(self._cdi_dir), uid))
        if read_file(PurePosixPath(path), limit=_MAX_CDI_BYTES) == spec:
            return False
        # Same directory, so that the runtime's watch sees the rename; a leading dot and no .json, so that it reads no half.
        durable.replace_file(path, spec, mode=_PRIVATE_MODE, temporary=path.with_name(f".{path.stem}.new"))
        return True

    def remove_claim(self, uid: ClaimUid) -> None:
        """The CDI file and the claim's directory are gone; the directory's content is in the trash."""
        if durable.remove_file(Path(cdi.spec_path(PurePosixPath(self._cdi_dir), uid))):
            durable.sync_directory(self._cdi_dir)
        directory = Path(self._agent.claim(uid))
        if directory.is_dir():
            self._discard(directory)
            durable.sync_directory(directory.parent)

    def make_partition(self, uid: ClaimUid, name: PartitionName, *, limits: bytes | None, binding: Binding | None) -> None:
        """A partition's fresh directory, whole from the moment it has its name; what had that name is in the trash.

        Without `limits` it only says who holds it, without `binding` nobody does yet.
        """
        final = Path(self._agent.partition(uid, name))
        staged = final.with_name(layout.TEMPORARY_PREFIX + name)
        if staged.exists():
            self._discard(staged)
        try:
            self._fill_partition(staged, limits=limits, binding=binding)
            if final.exists():
                self._discard(final)
            durable.rename(staged, final)
        except StorageFailed:
            with suppress(StorageFailed):  # what stays has a name that nobody reads
                durable.remove_tree(staged)
            raise

    def _fill_partition(self, directory: Path, *, limits: bytes | None, binding: Binding | None) -> None:
        durable.make_directory(directory, mode=_CLAIM_MODE)
        if limits is not None:
            durable.make_directory(directory / layout.CONFIG, mode=_CONFIG_MODE)
            durable.write_new_file(directory / layout.CONFIG / layout.LIMITS, limits, mode=_CONFIG_FILE_MODE)
        if binding is not None:
            durable.write_new_file(directory / layout.BINDING, bindings.encode_binding(binding), mode=_PRIVATE_MODE)

    def write_limits(self, uid: ClaimUid, name: PartitionName, limits: bytes) -> None:
        """The limits of a partition that stands, by rename within the mounted directory."""
        durable.replace_file_unsynced(Path(self._agent.limits(uid, name)), limits, mode=_CONFIG_FILE_MODE)

    def write_binding(self, uid: ClaimUid, name: PartitionName, binding: Binding) -> None:
        path = Path(self._agent.binding(uid, name))
        durable.replace_file_unsynced(path, bindings.encode_binding(binding), mode=_PRIVATE_MODE)

    def write_pids(self, uid: ClaimUid, name: PartitionName, pids: bytes) -> bool:
        """The PID list, by rename within the mounted directory: a container sees it at its next open. Whether it changed."""
        path = self._agent.pids(uid, name)
        if read_file(path, limit=64 << 10) == pids:
            return False
        durable.replace_file_unsynced(Path(path), pids, mode=_CONFIG_FILE_MODE)
        return True

    def read_limits(self, uid: ClaimUid, name: PartitionName) -> bytes | None:
        return read_file(self._agent.limits(uid, name), limit=1 << 20)

    def vacate_partition(self, uid: ClaimUid, name: PartitionName) -> None:
        """Nobody holds the partition any more, and it lists no process; its directory and limits stay for the next."""
        # The binding last: it is by that a repetition finds what is left to do.
        durable.remove_file(Path(self._agent.pids(uid, name)))
        durable.remove_file(Path(self._agent.binding(uid, name)))

    def discard_partition(self, uid: ClaimUid, name: PartitionName) -> None:
        """A partition's directory is in the trash."""
        path = Path(self._agent.claim(uid)) / name
        if path.exists():
            self._discard(path)

    def empty_trash(self, *, is_inhabited: Callable[[Binding | PodRef], bool]) -> dict[str, StorageFailed]:
        """What was thrown away is deleted, once no process is left that could read it. Repeating it is harmless.

        Returns which entries the disk would not let go, and why; they do not keep the others.

        A bind mount keeps the inode of a directory, not what is in it: a container that outlives its partition's place in the
        tree would find no limits, and go without. Where partitions were made at Prepare the pod is asked about, since nobody
        need have told of its containers.

        Raises:
            StorageFailed: the trash cannot be listed.
        """
        failed: dict[str, StorageFailed] = {}
        for name in _listed(Path(self._agent.trash)):
            entry = Path(self._agent.trash) / name
            if not any(is_inhabited(one) for one in _users_in(entry)):
                try:
                    durable.remove_tree(entry)
                except StorageFailed as exc:
                    failed[name] = exc
        return failed

    def remove_leftovers(self) -> list[str]:
        """What interrupted writes left is gone; the paths."""
        removed: list[str] = []
        for folder, directories, files in os.walk(self._agent.claims):
            for name in [d for d in directories if d.startswith(layout.TEMPORARY_PREFIX)]:
                self._discard(Path(folder, name))
                removed.append(f"{folder}/{name}")
            directories[:] = [d for d in directories if not d.startswith(".")]
            for name in [f for f in files if f.startswith(layout.TEMPORARY_PREFIX)]:
                durable.remove_file(Path(folder, name))
                removed.append(f"{folder}/{name}")
        for name in [n for n in _names(self._cdi_dir) if cdi.is_temporary(n)]:
            durable.remove_file(self._cdi_dir / name)
            removed.append(f"{self._cdi_dir}/{name}")
        return removed

    def spec_claims(self) -> list[str]:
        """Claim uids, as text, that a CDI file of ours names."""
        return sorted(uid for n in _names(self._cdi_dir) if (uid := cdi.claim_of_file(n)) is not None)

    def spec_gpus(self, uid: ClaimUid) -> frozenset[int]:
        """The GPUs that the claim's CDI file gives, by minor number; none where there is no such file or it cannot be read."""
        try:
            spec = read_file(cdi.spec_path(PurePosixPath(self._cdi_dir), uid), limit=_MAX_CDI_BYTES)
        except StorageFailed:
            return frozenset()
        return frozenset() if spec is None else cdi.gpu_minors(spec)

    def remove_spec(self, uid: str) -> None:
        durable.remove_file(self._cdi_dir / cdi.file_name(ClaimUid(uid)))

    def _discard(self, path: Path) -> None:
        durable.rename(path, Path(self._agent.trash) / f"{path.name}.{secrets.token_hex(4)}")


def _listed(path: Path) -> list[str]:
    with durable.storage("list", path):
        return os.listdir(path)


def _users_in(entry: Path) -> Iterator[Binding | PodRef]:
    yield from _bindings_in(entry)
    yield from _pods_in(entry)


def _bindings_in(entry: Path) -> Iterator[Binding]:
    """Those of a partition, or of a claim's partitions; what cannot be read is nobody's."""
    for folder in (entry, *(entry / name for name in _names(entry))):
        with suppress(BindingUnusable, StorageFailed):
            raw = read_file(PurePosixPath(folder / layout.BINDING), limit=bindings.MAX_BYTES)
            if raw is not None:
                yield bindings.decode_binding(raw)


def _pods_in(entry: Path) -> Iterator[PodRef]:
    with suppress(RecordUnusable, StorageFailed):
        raw = read_file(PurePosixPath(entry / layout.RECORD), limit=records.MAX_BYTES)
        record = None if raw is None else records.decode_record(raw)
        if record is not None and record.eager is not None:
            yield record.eager.pod


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
