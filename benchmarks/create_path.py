"""What the create path costs: CreateContainer on real containerd with and without nri-plugin, in interleaved rounds of one run.

    python benchmarks/create_path.py [containerd-1.7|containerd-2] [rounds]

Prints medians and 99th percentiles in ms, and the ratio of the medians to "no plugin". As root, after `make containerd`. The CRI
client is Python's and runs on the same cores: read the ratios, not the milliseconds, and the hook times that nri-plugin measured
itself.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from vgpu_testkit.containerd import Containerd, find_containerds
from vgpu_testkit.cri import Cri
from vgpu_testkit.daemons import Stack, StackPaths, make_stack
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import Claim
from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.node import build_node
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec
from vgpu_testkit.vgpu_node import until

DRIVER = "manager.nvidia.com"
PER_ROUND = 10
ENV = {f"USER_{i}": f"value-{i}" for i in range(20)}


@dataclass
class Row:
    """Durations of one kind of create, in ms."""

    name: str
    took_ms: list[float] = field(default_factory=list)

    def line(self, baseline: float) -> str:
        ordered = sorted(self.took_ms)
        p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
        return f"{self.name:<32} n {len(ordered):<5} p50 {p50:6.1f}  p99 {p99:6.1f}  × none {p50 / baseline:.2f}"


async def create_many(cri: Cri, pod: Pod, specs: list[ContainerSpec], row: Row) -> None:
    """Times each create; every container is removed before the next."""
    for spec in specs:
        began = time.perf_counter()
        container_id = await cri.create_container(pod, spec)
        row.took_ms.append((time.perf_counter() - began) * 1000)
        await cri.remove(container_id)


@dataclass
class Bench:
    """What a run measures, and with what."""

    cri: Cri
    stack: Stack
    pod: Pod
    cdi_ids: tuple[str, ...]
    rows: dict[str, Row]
    hooks: dict[str, list[float]]

    async def phase(self, *, has_plugin: bool) -> None:
        """Creates both kinds of container, with the plugin or without."""
        who = "nri-plugin" if has_plugin else "no plugin"
        other = [ContainerSpec(name=f"other-{i}", env=ENV) for i in range(PER_ROUND)]
        ours = [ContainerSpec(name="gpu", attempt=i, env=ENV, cdi_devices=self.cdi_ids) for i in range(PER_ROUND)]
        if has_plugin:
            self.stack.nri.start()
            await self.stack.nri.ready()
            await until(self.stack.is_synchronized, "nri-plugin's session is known to dra-plugin")
        await create_many(self.cri, self.pod, other[:2], Row("warm-up"))
        await create_many(self.cri, self.pod, other, self.rows[f"{who}, other"])
        await create_many(self.cri, self.pod, ours, self.rows[f"{who}, vGPU"])
        if has_plugin:
            for call in await self.stack.nri.debug("calls"):
                if call["hook"] == "create":
                    self.hooks["vGPU" if call.get("claim_uid") else "other"].append(call["duration_ms"])
            self.stack.nri.stop()

    def report(self) -> None:
        for name, row in self.rows.items():
            baseline = self.rows["no plugin, " + name.partition(", ")[2]]
            print(row.line(statistics.median(baseline.took_ms)))
        for name, took in self.hooks.items():
            ordered = sorted(took)
            p99 = ordered[int(len(ordered) * 0.99)]
            print(f"hook inside nri-plugin, {name:<8} n {len(took):<5} p50 {statistics.median(took):6.2f}  p99 {p99:6.2f}")


async def measure(version: str, rounds: int, root: Path) -> None:
    node = build_node(root / "node", native=Path(__file__).parents[1] / "build" / "native")
    manifest = Manifest(name="bench", shares=(Share(request="gpu", device="vgpu-5"),))
    manifest.write(root / "claims")
    containerd = Containerd(find_containerds()[version], root / "ctd", cdi_dir=node.cdi_dir)
    stack = make_stack(node, StackPaths(claims=root / "claims", nri_socket=containerd.nri_socket))
    try:
        containerd.start()
        async with Kubelet(node.kubelet_dir) as kubelet, Cri(containerd.socket) as cri:
            stack.dra.start()
            await kubelet.registered(DRIVER)
            await kubelet.prepare(DRIVER, [Claim(namespace=manifest.namespace, name=manifest.name, uid=manifest.uid)])
            bench = Bench(
                cri=cri,
                stack=stack,
                pod=await cri.run_pod(PodSpec(name="bench")),
                cdi_ids=tuple(kubelet.container_cdi_ids(manifest.uid, None)),
                rows={
                    f"{who}, {what}": Row(f"{who}, {what}") for what in ("other", "vGPU") for who in ("no plugin", "nri-plugin")
                },
                hooks={"other": [], "vGPU": []},
            )
            for _ in range(rounds):
                for has_plugin in random.sample((False, True), 2):
                    await bench.phase(has_plugin=has_plugin)
    finally:
        stack.stop()
        containerd.stop()
    print(f"{containerd.version_text}, {rounds} rounds of {PER_ROUND}")
    bench.report()


def main() -> None:
    version = (sys.argv[1:2] or ["containerd-2"])[0].removeprefix("containerd-")
    rounds = int((sys.argv[2:3] or ["8"])[0])
    root = Path(tempfile.mkdtemp(prefix="vb"))
    try:
        asyncio.run(measure(version, rounds, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
