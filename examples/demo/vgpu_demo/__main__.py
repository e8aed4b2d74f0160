"""`make demo`: the main job on a mock 8×H100 node, with no cluster and no GPU."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from grpclib.exceptions import GRPCError

from vgpu_demo.picture import node_picture
from vgpu_demo.report import Mismatch, Report
from vgpu_demo.runtimes import BadChoice, choose, open_stage
from vgpu_demo.scene import read_pod, read_scene
from vgpu_demo.story import DRIVER, Story
from vgpu_demo.supervisor import Supervisor
from vgpu_testkit.containerd import ContainerdFailed
from vgpu_testkit.daemons import DaemonFailed, StackPaths, make_stack
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import CallFailed, Claim, KubeletRefusal
from vgpu_testkit.manifests import Manifest, PodManifest, Share
from vgpu_testkit.node import build_node

_REPOSITORY = Path(__file__).parents[3]
_H100_BYTES = 81559 << 20


async def tell(report: Report, choice: str, root: Path) -> str:
    """The whole story; its last line."""
    native = _REPOSITORY / "build" / "native"
    node = build_node(root / "node", fixture="h100x8", native=native)
    pods = read_scene(_REPOSITORY / "examples")
    claims = root / "claims"
    shutil.copytree(_REPOSITORY / "examples", claims, ignore=lambda _, names: [n for n in names if not n.endswith(".yaml")])
    spare = Manifest(name="spare", shares=(Share(request="gpu", device="vgpu-2"),))
    spare.write(claims)
    late = PodManifest(name="late-0")
    slice_of_late = Manifest(
        name="slice", shares=(Share(request="gpu", device="vgpu-2", memory="10Gi", cores="25"),), reserved_for=(late,)
    )
    for manifest in (late, slice_of_late):
        manifest.write(claims)
    async with open_stage(choice, root, node, native) as stage:
        paths = StackPaths(claims=claims, nri_socket=stage.nri_socket, proc_root=stage.proc_root, cgroup_root=stage.cgroup_root)
        stack = make_stack(node, paths)
        report.document["runtime"] = stage.version
        report.show(
            f"runtime: {stage.version} ({stage.isolation}); three services as processes, a stand-in kubelet, no cluster\n"
        )
        report.show(node_picture(pods, gpus=8, memory_bytes=_H100_BYTES, name="NVIDIA H100 80GB HBM3 (mock)"))
        async with Kubelet(node.kubelet_dir) as kubelet, Supervisor(stack) as supervisor:
            for daemon in stack.daemons:
                await daemon.ready()
            await kubelet.registered(DRIVER)
            story = Story(report=report, stage=stage, stack=stack, supervisor=supervisor, kubelet=kubelet)
            await story.connected()
            await story.prepare(pods)
            await story.create(pods)
            await story.inspect()
            await story.kill_services(Claim(namespace=spare.namespace, name=spare.name, uid=spare.uid))
            await story.restart_in_place()
            await story.refuse_fraud()
            await story.arrive_without_nri(read_pod((late.document(), slice_of_late.document())))
            await story.clean_up(pods)
            count = len(story.running)
    return f"demo ok: {count} containers, runtime {stage.version}"


def main() -> int:
    """0 and a last line that says so, or 1 with what was expected and what was seen."""
    report = Report()
    root = Path(tempfile.mkdtemp(prefix="vgpu-demo-"))
    try:
        choice = choose(os.environ.get("DEMO_RUNTIME", ""))
        last = asyncio.run(tell(report, choice, root))
    except BadChoice as exc:
        print(f"demo: {exc}", file=sys.stderr)
        return 2
    except (Mismatch, DaemonFailed, ContainerdFailed, CallFailed, KubeletRefusal, GRPCError, TimeoutError) as exc:
        report.document["result"] = f"failed: {exc}"
        report.write(_REPOSITORY / "demo.json")
        print(f"\ndemo failed: {exc or type(exc).__name__}\nlogs: {root}/node/logs", file=sys.stderr)
        return 1
    shutil.rmtree(root, ignore_errors=True)
    report.document["result"] = last
    report.write(_REPOSITORY / "demo.json")
    print(f"\nthe same as a document: demo.json\n{last}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
