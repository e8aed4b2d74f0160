"""A look at the claims/ tree that nothing in it can lead astray."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from vgpu_state import bindings, records
from vgpu_state.errors import StorageFailed
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader, directory_stamp, read_file
from vgpu_testkit.dra_values import BINDING, CLAIM_UID, PARTITION, RECORD

OTHER = "aaaaaaaa-2222-4333-8444-555555555555"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(PurePosixPath(tmp_path))


@pytest.fixture
def partition(layout: Layout) -> Path:
    """A claim with one partition, as its writer leaves them."""
    directory = Path(layout.partition(CLAIM_UID, PARTITION))
    directory.mkdir(parents=True)
    Path(layout.record(CLAIM_UID)).write_bytes(records.encode_record(RECORD))
    Path(layout.binding(CLAIM_UID, PARTITION)).write_bytes(bindings.encode_binding(BINDING))
    return directory


@pytest.mark.usefixtures("partition")
def test_claims_and_partitions_are_those_with_a_directory(layout: Layout) -> None:
    reader = ClaimsReader(layout)

    assert reader.claim_uids() == [CLAIM_UID]
    assert reader.partitions(CLAIM_UID) == [PARTITION]
    assert reader.record(CLAIM_UID) == RECORD
    assert reader.binding(CLAIM_UID, PARTITION) == BINDING


def test_what_is_being_made_or_thrown_away_is_unseen(layout: Layout, partition: Path) -> None:
    claims = Path(layout.claims)
    for name in (".trash", f".new-{OTHER}", "lost+found", OTHER.upper()):
        (claims / name).mkdir()
    (claims / ".writer").touch()
    (claims / OTHER).touch()
    (partition.parent / f".new-{PARTITION}").mkdir()
    (partition.parent / "cg-0123").mkdir()

    reader = ClaimsReader(layout)

    assert reader.claim_uids() == [CLAIM_UID]
    assert reader.partitions(CLAIM_UID) == [PARTITION]


@pytest.mark.usefixtures("partition")
def test_links_to_directories_are_no_claims(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (Path(layout.claims) / OTHER).symlink_to(tmp_path / "elsewhere")

    assert ClaimsReader(layout).claim_uids() == [CLAIM_UID]


def test_missing_tree_claim_and_file_are_empty(layout: Layout) -> None:
    reader = ClaimsReader(layout)

    assert reader.claim_uids() == []
    assert reader.partitions(CLAIM_UID) == []
    assert reader.record(CLAIM_UID) is None
    assert reader.binding(CLAIM_UID, PARTITION) is None


def test_stamp_of_a_directory_moves_when_a_file_is_renamed_within_it(partition: Path) -> None:
    (partition / "staged").touch()
    os.utime(partition, ns=(1, 1))
    before = directory_stamp(str(partition))
    assert before is not None
    assert before.changed_ns == 1

    (partition / "staged").rename(partition / "binding.json")

    after = directory_stamp(str(partition))
    assert after is not None
    assert (after.inode, after.changed_ns > 1) == (before.inode, True)


def test_stamp_tells_a_directory_from_another_one_of_its_name_and_time(tmp_path: Path) -> None:
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        os.utime(folder, ns=(1, 1))
    before = directory_stamp(str(tmp_path / "first"))

    (tmp_path / "second").rename(tmp_path / "first")

    assert directory_stamp(str(tmp_path / "first")) != before


def test_a_directory_that_is_gone_has_no_stamp(tmp_path: Path) -> None:
    assert directory_stamp(str(tmp_path / "nowhere")) is None


def test_record_that_is_a_link_is_refused(layout: Layout, partition: Path) -> None:
    record = partition.parent / "claim.json"
    record.rename(partition.parent / "moved.json")
    record.symlink_to("moved.json")

    with pytest.raises(StorageFailed) as refusal:
        ClaimsReader(layout).record(CLAIM_UID)

    assert str(refusal.value) == f"cannot read {record}: ELOOP (Too many levels of symbolic links)"
    assert (refusal.value.path, refusal.value.errno_name) == (str(record), "ELOOP")


def test_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(StorageFailed, match=r"cannot read .*/fifo: EINVAL \(no regular file of at most 10 bytes\)"):
        read_file(PurePosixPath(tmp_path / "fifo"), limit=10)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="EINVAL"):
        read_file(PurePosixPath(tmp_path), limit=10)


def test_file_of_the_limit_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")

    assert read_file(PurePosixPath(path), limit=10) == b"0123456789"
    with pytest.raises(StorageFailed, match="no regular file of at most 9 bytes"):
        read_file(PurePosixPath(path), limit=9)


def test_refused_reads_leave_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        with pytest.raises(StorageFailed):
            read_file(PurePosixPath(tmp_path / "file"), limit=9)

    assert len(os.listdir("/proc/self/fd")) == before
