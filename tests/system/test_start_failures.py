"""A start that cannot succeed says one sentence and exits with 1; a wrong command line with 2. Never a traceback."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vgpu_testkit.dra_bench import DraBench

Spoil = Callable[[DraBench], dict[str, str]]


def no_kubelet_directory(bench: DraBench) -> dict[str, str]:
    shutil.rmtree(bench.node.kubelet_dir)
    return {}


def no_plugins_registry(bench: DraBench) -> dict[str, str]:
    shutil.rmtree(bench.node.kubelet_dir / "plugins_registry")
    return {}


def manager_directory_below_a_file(bench: DraBench) -> dict[str, str]:
    (bench.node.root / "file").touch()
    return {"VGPU_MANAGER_DIR": f"{bench.node.root}/file/m", "VGPU_HOST_ROOT": ""}


def manager_directory_refuses(bench: DraBench) -> dict[str, str]:
    return {"VGPU_MANAGER_DIR": "/proc/self", "VGPU_HOST_MANAGER_DIR": "/proc/self", "VGPU_HOST_ROOT": ""}


def no_manager_directory(bench: DraBench) -> dict[str, str]:
    return {"VGPU_MANAGER_DIR": f"{bench.node.root}/absent"}


def another_host_view(bench: DraBench) -> dict[str, str]:
    other = bench.node.root / "host-root"
    (other / str(bench.node.manager_dir).lstrip("/")).mkdir(parents=True)
    return {"VGPU_HOST_ROOT": str(other)}


def relative_path(_: DraBench) -> dict[str, str]:
    return {"VGPU_CDI_DIR": "var/run/cdi"}


def library_version_with_a_slash(_: DraBench) -> dict[str, str]:
    return {"VGPU_LIBRARY_VERSION": "../v1"}


def handlers_with_a_space(_: DraBench) -> dict[str, str]:
    return {"VGPU_RUNTIME_HANDLERS": ", nvidia*"}


def privileged_maybe(_: DraBench) -> dict[str, str]:
    return {"VGPU_ALLOW_PRIVILEGED": "maybe"}


def long_run_directory(bench: DraBench) -> dict[str, str]:
    return {"VGPU_RUN_DIR": f"{bench.node.root}/{'r' * 100}"}


def long_kubelet_directory(bench: DraBench) -> dict[str, str]:
    longer = bench.node.root / ("k" * 60)
    (longer / "plugins").mkdir(parents=True)
    (longer / "plugins_registry").mkdir()
    return {"VGPU_KUBELET_DIR": str(longer)}


def no_proc(bench: DraBench) -> dict[str, str]:
    return {"VGPU_PROC_ROOT": f"{bench.node.root}/no-proc"}


def run_directory_below_a_file(bench: DraBench) -> dict[str, str]:
    (bench.node.root / "file").touch()
    return {"VGPU_RUN_DIR": f"{bench.node.root}/file/run"}


def listen_without_a_port(_: DraBench) -> dict[str, str]:
    return {"VGPU_HTTP_LISTEN": "localhost"}


def listen_beyond_the_ports(_: DraBench) -> dict[str, str]:
    return {"VGPU_HTTP_LISTEN": "127.0.0.1:99999"}


def lock_is_a_directory(bench: DraBench) -> dict[str, str]:
    (bench.node.manager_dir / "claims/.writer").mkdir(parents=True)
    return {}


def cdi_directory_is_a_file(bench: DraBench) -> dict[str, str]:
    bench.node.cdi_dir.rmdir()
    bench.node.cdi_dir.touch()
    return {}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_kubelet_directory, ("cannot make", "/kubelet/plugins/manager.nvidia.com", "No such file", "--kubelet-dir")),
        (no_plugins_registry, ("manager.nvidia.com-reg.sock", "No such file")),
        (manager_directory_below_a_file, ("/file/m", "ENOTDIR")),
        (manager_directory_refuses, ("cannot lay out the manager directory", "/proc/self/claims", "ENOENT")),
        (no_manager_directory, ("cannot compare", "/absent", "No such file", "--manager-dir")),
        (another_host_view, ("--manager-dir", "is not the host's", "--host-manager-dir")),
        (relative_path, ("--cdi-dir is 'var/run/cdi'", "expected an absolute path")),
        (library_version_with_a_slash, ("--library-version is '../v1'", "expected letters")),
        (handlers_with_a_space, ("--runtime-handlers is ', nvidia*'", "without spaces")),
        (privileged_maybe, ("--allow-privileged is 'maybe'", "expected true or false")),
        (long_run_directory, ("socket path", "has room for 107", "choose a shorter --run-dir")),
        (long_kubelet_directory, ("socket path", "has room for 107", "choose a shorter --kubelet-dir")),
        (no_proc, ("cannot read the boot id below", "/no-proc", "--proc-root")),
        (run_directory_below_a_file, ("/file/run", "Not a directory", "--run-dir")),
        (listen_without_a_port, ("--http-listen is 'localhost'", "expected HOST:PORT")),
        (listen_beyond_the_ports, ("--http-listen is '127.0.0.1:99999'", "expected HOST:PORT")),
        (lock_is_a_directory, ("cannot open lock", "/claims/.writer", "directory")),
        (cdi_directory_is_a_file, ("/run/cdi", "EEXIST")),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_start_that_cannot_succeed_is_one_sentence(idle_bench: DraBench, spoil: Spoil, words: tuple[str, ...]) -> None:
    idle_bench.dra.environment |= spoil(idle_bench)

    code, said = end_of(idle_bench)

    lines = [line for line in said.splitlines() if not line.startswith("{")]  # the log is JSON
    assert code == (2 if "; expected" in said or "; choose" in said else 1), said
    assert len(lines) == 1, said
    assert lines[0].startswith("vgpu-dra-plugin: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("argument", ["--colour=red", "claims", "--cdi-dir"])
def test_wrong_command_line_is_usage_and_exit_code_2(idle_bench: DraBench, argument: str) -> None:
    idle_bench.dra.arguments = [argument]

    code, said = end_of(idle_bench)

    assert code == 2
    assert said.startswith("usage: vgpu-dra-plugin")
    assert argument.partition("=")[0] in said.splitlines()[-1]
    assert "Traceback" not in said


async def test_without_a_driver_it_serves_and_says_what_is_missing(bench: DraBench) -> None:
    for library in Path(bench.node.nvml_library).parent.glob("libnvidia-ml*so*"):
        library.unlink()
    bench.dra.start()

    assert bench.kubelet is not None
    await bench.kubelet.registered("manager.nvidia.com")
    state = await bench.dra.debug("state")

    assert "no libnvidia-ml.so.1 under" in state["gpu_fault"]
    assert "--driver-root" in state["gpu_fault"]


async def test_a_start_below_a_directory_that_is_made_later_needs_only_a_restart(bench: DraBench) -> None:
    registry = bench.node.kubelet_dir / "plugins"
    registry.rmdir()
    bench.dra.start()
    assert bench.dra.process is not None
    assert await asyncio.to_thread(bench.dra.process.wait, 10) == 1

    registry.mkdir()

    await bench.start()


def end_of(bench: DraBench) -> tuple[int, str]:
    """The exit code and everything that was said."""
    bench.dra.start()
    assert bench.dra.process is not None
    try:
        code = bench.dra.process.wait(10)
    except subprocess.TimeoutExpired:
        bench.dra.kill()
        code = -1
    return code, bench.dra.log_tail()
