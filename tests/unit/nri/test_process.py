"""The process as kubelet starts it: one sentence when it cannot run, an end when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_nri.config import Config, parse_config
from vgpu_proto import nri
from vgpu_testkit import nri_messages
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_runtime_end import RuntimeEnd


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vgpu_nri", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_options_come_from_the_command_line_then_the_environment() -> None:
    config = parse_config(
        ["--run-dir=/r"], {"VGPU_RUN_DIR": "/e", "VGPU_NRI_SOCKET": "/n.sock", "VGPU_HTTP_LISTEN": "127.0.0.1:1"}
    )

    assert config == Config(run_dir=Path("/r"), nri_socket="/n.sock", http_listen="127.0.0.1:1")
    assert config.partitions_socket == Path("/r/partitions/claims.sock")
    assert config.debug_socket == Path("/r/debug/nri.sock")
    assert config.lock == Path("/r/nri-plugin.lock")


def test_run_directory_that_cannot_be_made_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ended = _run(f"--run-dir={tmp_path}/file/run")

    assert ended.returncode == 1
    assert ended.stderr == f"vgpu-nri-plugin: cannot make {tmp_path}/file/run: Not a directory\n"


def test_lock_that_cannot_be_opened_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "nri-plugin.lock").mkdir()

    ended = _run(f"--run-dir={tmp_path}", f"--nri-socket={tmp_path}/nri.sock")

    assert ended.returncode == 1
    assert ended.stderr == f"vgpu-nri-plugin: cannot open lock {tmp_path}/nri-plugin.lock: Is a directory\n"


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:x"])
def test_malformed_address_is_one_sentence_and_exit_2(tmp_path: Path, listen: str) -> None:
    ended = _run(f"--run-dir={tmp_path}", f"--http-listen={listen}")

    assert ended.returncode == 2
    assert ended.stderr == f"vgpu-nri-plugin: --http-listen is '{listen}'; expected HOST:PORT\n"


def test_unknown_argument_is_exit_2(tmp_path: Path) -> None:
    assert _run("--nonsense").returncode == 2


async def test_process_registers_and_ends_with_0_at_sigterm(runtime: RuntimeEnd, config: Config) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vgpu_nri", f"--run-dir={config.run_dir}", f"--nri-socket={config.nri_socket}",
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    connection = await runtime.accept()
    await connection.attach()

    process.send_signal(signal.SIGTERM)

    await process.communicate()
    assert process.returncode == 0
    await connection.closed.wait()


async def test_pages_of_a_large_synchronize_are_given_back(runtime: RuntimeEnd, dra: FakePartitions, config: Config) -> None:
    """Six hundred containers, a message of 9 MB."""
    containers = [_with_much(f"{number:064x}") for number in range(600)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vgpu_nri", f"--run-dir={config.run_dir}", f"--nri-socket={config.nri_socket}",
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    connection = await runtime.accept()
    await connection.accept_registration()
    before_mib = _resident_mib(process.pid)

    await connection.call("Synchronize", nri.SynchronizeRequest(containers=containers))
    await dra.wait_for("RenewSession")

    grown_mib = _resident_mib(process.pid) - before_mib
    process.terminate()
    await process.wait()
    assert grown_mib <= 10  # half of it is what the containers are held with


def _resident_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) // 256


def _with_much(runtime_id: str) -> nri.Container:
    """A container of ours with as much in it as a real one: a hundred variables, thirty mounts of its own."""
    env = (nri_messages.GRANT, *(f"X{number}={'x' * 100}" for number in range(100)))
    container = nri_messages.container(runtime_id, env=env, state=int(nri.CONTAINER_RUNNING))
    for number in range(30):
        container.mounts.add(destination=f"/data/{number}", source=f"/var/lib/{runtime_id}/{number}", type="bind", options=["ro"])
    return container
