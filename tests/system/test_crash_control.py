"""The library that ends a process before its k-th file-system call counts what changes the watched folders and nothing else."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_testkit.crash_control import Call, CrashControl

SCENARIO = """
import fcntl, os, sys
root, elsewhere = sys.argv[1:]
os.mkdir(f"{root}/d")
fd = os.open(f"{root}/d/a", os.O_WRONLY | os.O_CREAT, 0o600)
os.write(fd, b"x")
os.fsync(fd)
fcntl.flock(fd, fcntl.LOCK_EX)
os.ftruncate(fd, 0)
os.close(fd)
os.rename(f"{root}/d/a", f"{root}/d/b")
folder = os.open(f"{root}/d", os.O_RDONLY)
os.fsync(folder)
os.symlink("b", "c", dir_fd=folder)
os.unlink("c", dir_fd=folder)
os.chdir(f"{root}/d")
os.chmod("b", 0o644)
open("b").read()
os.unlink("b")
os.rmdir(f"{root}/d")
with open(f"{elsewhere}/f", "w") as other:
    other.write("not below the root")
print("all done")
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root", "root-elsewhere"):
        (tmp_path / name).mkdir()
    return tmp_path / "root", tmp_path / "root-elsewhere"


def run(control: CrashControl, folders: tuple[Path, Path], native: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", "-c", SCENARIO, *map(str, folders)]
    return subprocess.run(
        argv, env=control.environment(native, [folders[0]]), capture_output=True, text=True, timeout=10, check=False
    )


def test_calls_that_change_the_root_are_counted_in_order(tmp_path: Path, folders: tuple[Path, Path], native: Path) -> None:
    control = CrashControl(tmp_path / "control")
    control.count()

    ended = run(control, folders, native)

    d = f"{folders[0]}/d"
    assert ended.stdout == "all done\n", ended.stderr
    assert [Call(call.name.removesuffix("64"), call.path) for call in control.disarm()] == [
        Call("mkdir", d),
        Call("open", f"{d}/a"),
        Call("write", f"{d}/a"),
        Call("fsync", f"{d}/a"),
        Call("flock", f"{d}/a"),
        Call("ftruncate", f"{d}/a"),
        Call("rename", f"{d}/b"),
        Call("fsync", d),
        Call("symlinkat", f"{d}/c"),
        Call("unlinkat", f"{d}/c"),
        Call("chmod", f"{d}/b"),
        Call("unlink", f"{d}/b"),
        Call("rmdir", d),
    ]


def test_process_ends_before_the_call_that_was_chosen(tmp_path: Path, folders: tuple[Path, Path], native: Path) -> None:
    control = CrashControl(tmp_path / "control")
    control.kill_before(3)

    ended = run(control, folders, native)

    assert ended.returncode == -signal.SIGKILL
    assert control.disarm()[-1] == Call("write", f"{folders[0]}/d/a")
    assert (folders[0] / "d/a").read_bytes() == b""


def test_chosen_call_fails_and_the_process_goes_on(tmp_path: Path, folders: tuple[Path, Path], native: Path) -> None:
    control = CrashControl(tmp_path / "control")
    control.fail(4, errno.ENOSPC)

    ended = run(control, folders, native)

    assert "OSError: [Errno 28] No space left on device" in ended.stderr
    assert control.disarm()[-1] == Call("fsync", f"{folders[0]}/d/a")
    assert (folders[0] / "d/a").read_bytes() == b"x"


def test_nothing_is_counted_unless_armed(tmp_path: Path, folders: tuple[Path, Path], native: Path) -> None:
    control = CrashControl(tmp_path / "control")

    ended = run(control, folders, native)

    assert ended.stdout == "all done\n", ended.stderr
    assert control.disarm() == []
