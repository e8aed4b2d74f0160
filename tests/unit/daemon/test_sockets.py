"""Unix sockets that appear whole and never leave their path empty."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from vgpu_daemon import sockets
from vgpu_daemon.run import BadUsage, StartFailed


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_published_socket_listens_with_its_mode(short_dir: Path, mode: int) -> None:
    with sockets.publish(short_dir / "s.sock", mode=mode):
        connect(short_dir / "s.sock")
        assert stat.S_IMODE((short_dir / "s.sock").stat().st_mode) == mode

    assert [p.name for p in short_dir.iterdir()] == ["s.sock"]


def test_what_was_there_is_replaced(short_dir: Path) -> None:
    path = short_dir / "s.sock"
    path.write_text("a predecessor's leftover")

    with sockets.publish(path, mode=0o600):
        connect(path)


def test_path_is_never_missing_while_a_successor_takes_it(short_dir: Path) -> None:
    path = short_dir / "s.sock"
    first = sockets.publish(path, mode=0o600)
    missing: list[OSError] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                path.stat()
            except OSError as exc:
                missing.append(exc)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(100):
        sockets.publish(path, mode=0o600).close()
    done.set()
    watcher.join()
    first.close()

    assert missing == []


def test_path_too_long_for_a_socket_is_a_sentence_that_names_the_option() -> None:
    with pytest.raises(BadUsage) as refusal:
        sockets.check_path(Path("/run/ä") / ("d" * 93) / "s.sock", option="run-dir")

    assert str(refusal.value) == (
        f"socket path /run/ä/{'d' * 93}/s.sock has 108 bytes, a unix socket's has room for 107; choose a shorter --run-dir"
    )


def test_a_path_of_107_bytes_passes_and_can_be_published_and_dialled(short_dir: Path) -> None:
    room = 107 - len(os.fsencode(short_dir)) - len("//dra.sock")
    directory = short_dir / ("d" * room)
    directory.mkdir()
    path = directory / "dra.sock"
    assert len(os.fsencode(path)) == 107

    sockets.check_path(path, option="run-dir")

    with sockets.publish(path, mode=0o600):
        connect(path)


def test_only_a_socket_that_nobody_serves_is_removed_as_dead(short_dir: Path) -> None:
    alive, dead, file = short_dir / "alive.sock", short_dir / "dead.sock", short_dir / "file.sock"
    sockets.publish(dead, mode=0o600).close()
    file.touch()

    with sockets.publish(alive, mode=0o600):
        removed = [sockets.remove_dead(path) for path in (alive, dead, file, short_dir / "none.sock")]

    assert removed == [False, True, False, False]
    assert sorted(path.name for path in short_dir.iterdir()) == ["alive.sock", "file.sock"]


def test_a_socket_with_a_full_backlog_is_not_dead(short_dir: Path) -> None:
    path = short_dir / "s.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))

        assert sockets.is_dead(path) is False


def test_missing_directory_is_a_sentence(short_dir: Path) -> None:
    with pytest.raises(StartFailed) as refusal:
        sockets.publish(short_dir / "none/s.sock", mode=0o600)

    assert str(refusal.value) == f"cannot publish socket {short_dir}/none/s.sock: No such file or directory"


def test_refused_publication_leaves_nothing(short_dir: Path) -> None:
    (short_dir / "s.sock").mkdir()

    with pytest.raises(StartFailed, match="Is a directory"):
        sockets.publish(short_dir / "s.sock", mode=0o600)

    assert [p.name for p in short_dir.iterdir()] == ["s.sock"]


def test_own_socket_is_withdrawn_and_a_successors_is_not(short_dir: Path) -> None:
    path = short_dir / "s.sock"
    first = sockets.publish(path, mode=0o600)
    identity = sockets.identity(path)

    second = sockets.publish(path, mode=0o600)
    sockets.withdraw(path, identity)
    assert path.exists()

    sockets.withdraw(path, sockets.identity(path))
    assert not path.exists()
    sockets.withdraw(path, identity)
    first.close()
    second.close()
