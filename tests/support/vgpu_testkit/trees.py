"""Folders as values: what is in them, comparable between two runs of one operation, and whether a reader finds a half of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from vgpu_state import bindings, layout, pids, records, vgpu_config
from vgpu_state.claims import Binding, EagerPartition, HolderState
from vgpu_state.errors import VgpuError
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader

_DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")
_NONCE = re.compile(rb"\b[0-9a-f]{32}\b")
_REGISTER_UUID = re.compile(rb'"register_uuid": "([0-9a-f-]{36})"')
_GRANT = re.compile(rb'"VGPU_GRANT_([0-9a-f]{16})=[^"]*/([0-9a-f]{32})"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory; `content` of a file without what is drawn at random (nonces, the UUIDs to register with) or given by
    the runtime (ids).
    """

    mode: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a write would change."""

    inode: int
    mtime_ns: int
    ctime_ns: int
    size: int


def picture(*roots: Path) -> dict[str, Entry]:
    """Every entry below each root, by its path."""
    found = [
        (str(path), stat.filemode(status.st_mode), path.read_bytes() if stat.S_ISREG(status.st_mode) else b"")
        for path, status in _walk(roots)
    ]
    drawn = {uuid: b"UUID %d" % n for n, uuid in enumerate(u for *_, raw in found for u in _REGISTER_UUID.findall(raw))}
    return {path: Entry(mode=mode, content=_without_the_drawn(raw, drawn)) for path, mode, raw in found}


def _without_the_drawn(raw: bytes, uuids: Mapping[bytes, bytes]) -> bytes:
    for uuid, name in uuids.items():
        raw = raw.replace(uuid, name)
    return _NONCE.sub(b"NONCE", _DIGEST.sub(b"ID", raw))


def stamps(*roots: Path) -> dict[str, Stamp]:
    """Inode, times and size of each root and of every entry below it, by path."""
    rows = (*((path, path.stat()) for path in roots), *_walk(roots))
    return {str(path): Stamp(inode=s.st_ino, mtime_ns=s.st_mtime_ns, ctime_ns=s.st_ctime_ns, size=s.st_size) for path, s in rows}


def halves(manager_dir: Path, cdi_dir: Path) -> list[str]:
    """What a reader of the tree or of the CDI directory would find unfinished, as sentences; [] when all is whole or absent.

    Readers pass over names that begin with a dot, and the runtime over CDI files that do not end in .json.
    """
    tree = Layout(PurePosixPath(manager_dir))
    reader = ClaimsReader(tree)
    found: list[str] = []
    for uid in reader.claim_uids():
        made: set[PartitionName] = set()
        if (raw := _bytes(tree.record(uid))) is not None:
            found += _undecodable(f"{uid}/{layout.RECORD}", partial(records.decode_record, raw))
            made = {p.name for p in _eager_partitions(raw)}
        for name in reader.partitions(uid):
            found += _half_partition(tree, uid, name, may_be_vacant=name in made)
    for file in sorted(cdi_dir.glob("*.json")):
        found += _undecodable(file.name, partial(json.loads, file.read_bytes()))
    return found


def nonces_by_key(document: Path) -> dict[str, str]:
    """The nonce of each grant, as a CDI file delivers them."""
    return {key.decode(): nonce.decode() for key, nonce in _GRANT.findall(document.read_bytes())}


def record_checksum(payload: object) -> str:
    """The checksum that a claim record must carry for this payload."""
    return hashlib.sha256(json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _eager_partitions(record: bytes) -> tuple[EagerPartition, ...]:
    try:
        eager = records.decode_record(record).eager
    except VgpuError:
        return ()
    return eager.partitions if eager is not None else ()


def _half_partition(tree: Layout, uid: ClaimUid, name: PartitionName, *, may_be_vacant: bool) -> list[str]:
    raw, limits = _bytes(tree.binding(uid, name)), partial(vgpu_config.decode_limits, _bytes(tree.limits(uid, name)) or b"")
    if raw is None and may_be_vacant:
        return _undecodable(f"{uid}/{name}/vgpu.config", limits)
    if raw is None:
        return [f"{uid}/{name} has no binding"]
    found = _undecodable(f"{uid}/{name}/binding.json", partial(bindings.decode_binding, raw))
    if not found and bindings.decode_binding(raw).home is not None:
        return []  # the partition is in that claim
    found += _undecodable(f"{uid}/{name}/vgpu.config", limits)
    listed = _bytes(tree.pids(uid, name))
    if listed is not None and not (listed.endswith(b"\n") and pids.decode_pids(listed)):
        found.append(f"{uid}/{name}/pids.config holds {listed!r}")
    if listed is None and not found and _runs(bindings.decode_binding(raw)):
        found.append(f"{uid}/{name} is started and has no PID list")
    return found


def _runs(binding: Binding) -> bool:
    return binding.is_started and binding.state is not HolderState.STOPPED


def _undecodable(what: str, decode: Callable[[], object]) -> list[str]:
    try:
        decode()
    except (ValueError, VgpuError) as exc:
        return [f"{what}: {exc}"]
    return []


def _bytes(path: PurePosixPath) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def _walk(roots: tuple[Path, ...]) -> Iterator[tuple[Path, os.stat_result]]:
    for root in roots:
        for folder, directories, files in os.walk(root):
            for name in sorted((*directories, *files)):
                path = Path(folder, name)
                yield path, path.lstat()
