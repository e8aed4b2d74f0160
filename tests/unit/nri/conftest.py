"""A node for the plugin: a run directory, a runtime that listens, a dra-plugin that counts, and the plugin itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_nri.lease import Pace
from vgpu_nri.link import LinkTiming
from vgpu_testkit import fake_partitions, nri_bench, nri_runtime_end
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_runtime_end import RuntimeEnd


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    run_dir = tmp_path_factory.mktemp("n")  # short: a socket address holds 107 bytes
    return Config(run_dir=run_dir, nri_socket=str(run_dir / "nri.sock"))


@pytest.fixture
def timing() -> app.Timing:
    """Everything that takes seconds on a node in hundredths of them, but for the watchdog."""
    return app.Timing(
        link=LinkTiming(first_retry_s=0.02, longest_retry_s=0.05),
        pace=Pace(renew_s=0.02, first_retry_s=0.01, longest_retry_s=0.02),
    )


@pytest.fixture
async def runtime(config: Config) -> AsyncIterator[RuntimeEnd]:
    async with nri_runtime_end.listening(Path(config.nri_socket)) as end:
        yield end


@pytest.fixture
async def dra(config: Config) -> AsyncIterator[FakePartitions]:
    fake = FakePartitions()
    async with fake_partitions.serving(fake, config.partitions_socket):
        yield fake


@pytest.fixture
async def plugin(runtime: RuntimeEnd, config: Config, timing: app.Timing) -> AsyncIterator[None]:
    async with nri_bench.running(config, timing):
        yield
