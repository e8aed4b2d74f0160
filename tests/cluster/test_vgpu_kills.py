"""kill -9 of each process of the node and of the API server while pods come and go: none is stuck, nothing is left or lost.

One round of ten pods each; `make kill-table` has ten of 30. Later rounds kill later in the pods' lives.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_vgpu import VgpuCluster, installed, wait_until
from vgpu_testkit.cluster_vgpu_burst import Burst
from vgpu_testkit.cluster_vgpu_pods import Namespace, opened

_KILLED = ("dra-plugin", "nri-plugin", "registry", "kubelet", "containerd", "kube-apiserver")
_ROUNDS = int(os.environ.get("VGPU_KILL_ROUNDS") or 1)
_PODS = int(os.environ.get("VGPU_KILL_PODS") or 10)
_AWAY_S = 1.0
# From the first claim that is prepared on, the pods of a burst pass all stages within about this time.
_SPREAD_S = 3.0


@pytest.fixture(scope="module")
def vgpu(running_cluster: Cluster, native: Path) -> Iterator[VgpuCluster]:
    """The services on the cluster's node, started again whenever one ends."""
    with installed(running_cluster, native) as running, running.supervised():
        yield running


@pytest.fixture
def namespace(vgpu: VgpuCluster, cluster: Cluster) -> Iterator[Namespace]:
    """A namespace without pods and claims, on a node that is at rest, and comes to rest again."""
    vgpu.settle()
    with opened(vgpu) as found:
        yield found


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[dict[str, Counter[str]]]:
    """What became of the pods by what was killed; shown at the end."""
    rows: dict[str, Counter[str]] = {}
    yield rows
    terminal, capture = (request.config.pluginmanager.get_plugin(name) for name in ("terminalreporter", "capturemanager"))
    assert terminal is not None
    assert capture is not None
    with capture.global_and_fixture_disabled():
        for line in _markdown(rows):
            terminal.write_line(line)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("turn", range(_ROUNDS))
@pytest.mark.parametrize("killed", _KILLED)
def test_pods_run_or_fail_with_a_reason_when_a_process_is_killed(
    namespace: Namespace, table: dict[str, Counter[str]], killed: str, turn: int
) -> None:
    vgpu, row = namespace.vgpu, table.setdefault(killed, Counter())
    # A kubelet that was away while pods vanished needs its own minute to see what they left: the first round has that.
    grace_s = 0 if turn == 0 else 1
    burst = Burst(namespace)
    burst.create(_PODS * 2 // 5)
    wait_until(vgpu.claims, "the first claim of the burst is prepared")
    time.sleep(turn / _ROUNDS * _SPREAD_S)

    vgpu.kill(killed)
    if killed != "kube-apiserver":
        burst.create(_PODS * 2 // 5)
        burst.delete(_PODS // 5, grace_s=grace_s)
    time.sleep(_AWAY_S)
    if killed in vgpu.cluster.components:
        vgpu.cluster.restart(killed)
    if killed == "kube-apiserver":
        burst.create(_PODS * 2 // 5)
        burst.delete(_PODS // 5, grace_s=grace_s)
    burst.create(_PODS // 5)

    fates = burst.fates()
    row.update(["rounds", *(fate.kind for fate in fates)])
    row["seconds"] = max(row["seconds"], burst.settled_s)
    assert [fate.story for fate in fates if fate.kind == "stuck"] == []
    assert burst.wrong_limits() == []


def _markdown(rows: dict[str, Counter[str]]) -> Iterator[str]:
    counts = ("rounds", "running", "failed", "stuck")
    yield f"\n\n| killed | {' | '.join(counts)} | slowest pod |"
    yield "|---" * 6 + "|"
    for killed, row in rows.items():
        yield f"| {killed} | {' | '.join(str(row[count]) for count in counts)} | {row['seconds']} s |"
