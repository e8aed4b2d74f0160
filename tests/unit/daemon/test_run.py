"""A daemon's life in a real process: exit codes, signals, one sentence instead of a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import asyncio, threading
from vgpu_daemon import run
from vgpu_daemon.run import StartFailed
def say(word):
    print(word, flush=True)
def hang():
    threading.Thread(target=threading.Event().wait).start()
"""


def begin(main: str) -> subprocess.Popen[str]:
    program = PRELUDE + textwrap.dedent(main) + "\nrun.run(main, prog='vgpu-x')\n"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(main: str) -> tuple[int, str, str]:
    with begin(main) as process:
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, out, err


def test_end_without_a_fault_is_exit_0_although_a_thread_hangs() -> None:
    assert finish("""
        async def main(stop):
            hang()
            print("done")
    """) == (0, "done\n", "")


def test_start_that_cannot_succeed_is_one_sentence_and_exit_1() -> None:
    assert finish("""
        async def main(stop):
            hang()
            raise StartFailed("the cupboard is bare")
    """) == (1, "", "vgpu-x: the cupboard is bare\n")


def test_start_that_fails_in_several_tasks_is_one_sentence() -> None:
    assert finish("""
        async def fail(word):
            raise StartFailed(word)
        async def main(stop):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail("one"))
                tasks.create_task(fail("other"))
    """) == (1, "", "vgpu-x: one\n")


def test_fault_of_ours_is_a_traceback_and_exit_1_although_a_thread_hangs() -> None:
    code, _, err = finish("""
        async def main(stop):
            hang()
            raise RuntimeError("a bug")
    """)

    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("RuntimeError: a bug\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_asks_to_stop_and_the_process_exits_0(number: signal.Signals) -> None:
    with begin("""
        async def main(stop):
            say("ready")
            await stop.wait()
            say("drained")
    """) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "drained\n", "")


def test_second_signal_ends_a_drain_at_once_with_exit_1() -> None:
    with begin("""
        async def main(stop):
            say("ready")
            await stop.wait()
            say("draining")
            await asyncio.Event().wait()
    """) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "draining\n"
        process.terminate()
        process.communicate(timeout=30)

    assert process.returncode == 1


# Runs a program without what lets into other processes, as a container is and a daemon that dropped what it does not need.
UNPRIVILEGED = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 24, 19, 21, 38
for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("what", ["root/etc/hostname", "cwd/.", "environ"])
def test_container_that_sees_the_hosts_proc_cannot_look_into_a_daemon(what: str) -> None:
    """Both run as root, with the same capabilities: to the kernel they are alike."""
    up = PRELUDE + "async def main(stop):\n    say('up')\n    await stop.wait()\nrun.run(main, prog='vgpu-x')\n"
    look = "import os, sys; os.stat(sys.argv[1]) if sys.argv[1].endswith('/.') else open(sys.argv[1]).read()"
    with subprocess.Popen([sys.executable, "-c", UNPRIVILEGED, up], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        command = [sys.executable, "-c", UNPRIVILEGED, look, f"/proc/{process.pid}/{what}"]
        looked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        process.send_signal(signal.SIGTERM)

    assert (looked.returncode, "PermissionError" in looked.stderr) == (1, True), looked.stderr
