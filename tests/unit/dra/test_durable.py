"""Writes on a real disk: whole or not at all, and a refusal that names the path and the errno."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from vgpu_dra.effects import durable
from vgpu_state.errors import StorageFailed

FullDisk = Callable[[int], AbstractContextManager[None]]


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


@pytest.mark.parametrize("write", [durable.replace_file, durable.replace_file_unsynced])
def test_file_is_replaced_by_another_inode_with_its_mode(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    inode = path.stat().st_ino

    with path.open("rb") as reader:
        write(path, b"new", mode=0o600)
        assert reader.read() == b"old"

    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [durable.replace_file, durable.replace_file_unsynced])
def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, write: Callable[..., None], full_disk: FullDisk) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with full_disk(4096), pytest.raises(StorageFailed) as refusal:
        write(path, b"x" * 5000, mode=0o600)

    assert str(refusal.value) == f"cannot write {path}: EFBIG (File too large)"
    assert (refusal.value.path, refusal.value.errno_name) == (str(path), "EFBIG")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_unfinished_write_of_a_predecessor_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".new-file").write_bytes(b"much longer than what comes")

    durable.replace_file(tmp_path / "file", b"new", mode=0o600)

    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_link_in_the_place_of_the_temporary_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / ".new-file").symlink_to("victim")

    with pytest.raises(StorageFailed, match="ELOOP"):
        durable.replace_file(tmp_path / "file", b"new", mode=0o600)

    assert (tmp_path / "victim").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda p: durable.replace_file(p, b"", mode=0o600), "cannot write {}: ENOENT (No such file or directory)"),
        (lambda p: durable.write_new_file(p, b"", mode=0o600), "cannot write {}: ENOENT (No such file or directory)"),
        (lambda p: durable.make_directory(p, mode=0o700), "cannot make directory {}: ENOENT (No such file or directory)"),
        (lambda p: durable.sync_directory(p), "cannot sync directory {}: ENOENT (No such file or directory)"),
        (lambda p: durable.rename(p, p.with_name("x")), "cannot rename {}: ENOENT (No such file or directory)"),
    ],
)
def test_refusal_names_action_path_and_errno(tmp_path: Path, act: Callable[[Path], None], words: str) -> None:
    path = tmp_path / "none/file"

    with pytest.raises(StorageFailed) as refusal:
        act(path)

    assert str(refusal.value) == words.format(path)


def test_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d/file").touch()

    durable.make_directory(tmp_path / "d", mode=0o711)

    assert names(tmp_path / "d") == ["file"]
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").touch()

    with pytest.raises(StorageFailed, match=r"cannot make directory .*/d: EEXIST"):
        durable.make_directory(tmp_path / "d", mode=0o711)


def test_removal_says_whether_there_was_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert [durable.remove_file(tmp_path / "file"), durable.remove_file(tmp_path / "file")] == [True, False]


def test_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/file").touch()
    os.mkfifo(tree / "a/fifo")
    (tree / "link").symlink_to(tmp_path / "kept")
    (tree / "dangling").symlink_to("nowhere")

    durable.remove_tree(tree)
    durable.remove_tree(tree)

    assert names(tmp_path) == ["kept"]
    assert names(tmp_path / "kept") == ["file"]


def test_tree_that_is_a_link_or_a_file_is_removed_itself(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()

    durable.remove_tree(tmp_path / "link")
    durable.remove_tree(tmp_path / "file")

    assert names(tmp_path) == ["kept"]
    assert names(tmp_path / "kept") == ["file"]
