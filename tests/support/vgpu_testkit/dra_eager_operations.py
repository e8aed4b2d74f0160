"""What dra-plugin does where partitions are made at Prepare, and where a container has shares of two claims; crashes are tried on
it as on `dra_operations`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vgpu_testkit.dra_bench import Container, half_a_gpu
from vgpu_testkit.dra_operations import BINDING, CLAIM, PIDS, RECORD, TRAIN, Operation, P, Scene
from vgpu_testkit.manifests import Consumer, Manifest, PodManifest

WITHOUT_NRI = {"VGPU_FEATURE_GATES": "NRISupport=false"}
POD = PodManifest(
    name="two-workers-0",
    uid=TRAIN.pod_uid,
    containers=(
        Consumer(name="warm", uses={CLAIM.name: ("server",)}, kind="init"),
        Consumer(name="train", uses={CLAIM.name: ("trainer",)}),
        Consumer(name="serve", uses={CLAIM.name: ("server",)}),
    ),
)
RESERVED = replace(CLAIM, reserved_for=(POD,))
TRAIN_DIR, SERVE_DIR = "cg-fb9d07f1d087", "cg-e059ca630ba9"
MORE = half_a_gpu("more", device="vgpu-5", uid="9a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10")
WARM = Container(name="warm", requests=("server",))
SERVE = Container(name="serve", requests=("server",), pid=4_000_001)
OF_BOTH = Container(requests=("trainer", "gpu"))


@dataclass
class EagerScene(Scene):
    """The claim is prepared without NRI: `train` has a partition, `warm` and then `serve` another."""

    first: Container = WARM
    other: Container = SERVE
    manifests: ClassVar[tuple[Manifest, ...]] = (RESERVED,)
    environment: ClassVar[Mapping[str, str]] = WITHOUT_NRI

    def __post_init__(self) -> None:
        super().__post_init__()
        POD.write(self.bench.claims)

    async def run_first(self) -> None:
        self.bench.create(RESERVED, self.first)
        self.bench.run(self.first)

    async def run_other(self) -> None:
        self.bench.create(RESERVED, self.other)
        self.bench.run(self.other)

    async def register_first(self) -> None:
        await self.bench.register(RESERVED, self.first)

    async def register_other(self) -> None:
        await self.bench.register(RESERVED, self.other)

    async def list_more(self) -> None:
        pids = (self.first.pid, self.first.pid + 7)
        await self.bench.calls.record_pids(RESERVED.uid, SERVE_DIR, self.first.runtime_id, pids)

    async def lose_a_directory(self) -> None:
        shutil.rmtree(self.bench.claim_dir(RESERVED) / SERVE_DIR)


@dataclass
class TwoClaimsScene(Scene):
    """One container has shares of both claims."""

    first: Container = OF_BOTH
    manifests: ClassVar[tuple[Manifest, ...]] = (CLAIM, MORE)

    async def ensure_first(self) -> None:
        await self.bench.ensure(CLAIM, self.first, MORE)

    async def ensure_second(self) -> None:
        await self.bench.ensure(CLAIM, self.second, MORE)


def _made(name: str) -> tuple[tuple[str, str], ...]:
    """A partition that is made at Prepare."""
    return (("mkdir", f".new-{name}"), ("mkdir", "/config"), ("write", "/vgpu.config"), ("rename", f"{CLAIM.uid}/{name}"))


M = f"claims/{MORE.uid}"
HOLDS = (EagerScene.prepare, EagerScene.run_first, EagerScene.register_first)
SHARED = (
    ("mkdir", f"{M}/.new-{TRAIN.partition}"),
    ("write", "/binding.json"),
    ("rename", f"{M}/{TRAIN.partition}"),
    ("write", "/vgpu.config"),
    ("write", "/binding.json"),
    ("rename", f"{P}/{TRAIN.partition}"),
)

EAGER_OPERATIONS = (
    Operation(
        name="prepare without NRI",
        scene=EagerScene,
        act=EagerScene.prepare,
        expected=(
            ("mkdir", P),
            *RECORD,
            *_made(SERVE_DIR),
            *_made(TRAIN_DIR),
            ("rename", f"_{CLAIM.uid}.json"),
            *RECORD,
        ),
    ),
    Operation(
        name="ensure on what was made at Prepare",
        scene=EagerScene,
        before=(EagerScene.prepare,),
        act=EagerScene.ensure_first,
        expected=BINDING,
    ),
    Operation(
        name="start on what was made at Prepare",
        scene=EagerScene,
        before=(EagerScene.prepare, EagerScene.ensure_first),
        act=EagerScene.start_first,
        expected=(*PIDS, *BINDING),
    ),
    Operation(
        name="register",
        scene=EagerScene,
        before=(EagerScene.prepare, EagerScene.run_first),
        act=EagerScene.register_first,
        expected=(*PIDS, *BINDING),
    ),
    Operation(
        name="register after one that has ended",
        scene=EagerScene,
        before=(*HOLDS, EagerScene.end_first, EagerScene.run_other),
        act=EagerScene.register_other,
        expected=(*PIDS, *BINDING),
    ),
    Operation(
        name="record pids of one that has registered",
        scene=EagerScene,
        before=HOLDS,
        act=EagerScene.list_more,
        expected=PIDS,
    ),
    Operation(
        name="release stopped, directory made at Prepare",
        scene=EagerScene,
        before=HOLDS,
        act=EagerScene.stop_first,
        expected=BINDING,
    ),
    Operation(
        name="release removed, directory made at Prepare",
        scene=EagerScene,
        before=(*HOLDS, EagerScene.stop_first),
        act=EagerScene.remove_first,
        expected=(("unlink", "/pids.config"), ("unlink", "/binding.json")),
    ),
    Operation(
        name="restore a directory made at Prepare",
        scene=EagerScene,
        before=(EagerScene.prepare, EagerScene.lose_a_directory),
        act=EagerScene.prepare,
        expected=_made(SERVE_DIR),
    ),
    Operation(
        name="unprepare what was prepared without NRI",
        scene=EagerScene,
        before=(*HOLDS, EagerScene.stop_first),
        act=EagerScene.unprepare,
        expected=(("unlink", f"_{CLAIM.uid}.json"), ("rename", ""), ("unlink", "vgpu.config"), ("rmdir", "")),
    ),
    Operation(
        name="ensure with two claims",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare,),
        act=TwoClaimsScene.ensure_first,
        expected=SHARED,
    ),
    Operation(
        name="ensure with two claims, retried by a new container",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare,),
        act=TwoClaimsScene.ensure_first,
        retry=TwoClaimsScene.ensure_second,
        expected=SHARED,
    ),
    Operation(
        name="ensure with two claims over the last attempt",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare, TwoClaimsScene.ensure_first, TwoClaimsScene.start_first, TwoClaimsScene.end_first),
        act=TwoClaimsScene.ensure_second,
        expected=(("rename", f"{M}/{TRAIN.partition}"), ("rename", f"{P}/{TRAIN.partition}"), ("unlink", "pids.config")),
    ),
    Operation(
        name="start with two claims",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare, TwoClaimsScene.ensure_first),
        act=TwoClaimsScene.start_first,
        expected=(*BINDING, *PIDS, *BINDING),
    ),
    Operation(
        name="release stopped with two claims",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare, TwoClaimsScene.ensure_first, TwoClaimsScene.start_first),
        act=TwoClaimsScene.stop_first,
        expected=(*BINDING, *BINDING),
    ),
    Operation(
        name="release removed with two claims",
        scene=TwoClaimsScene,
        before=(TwoClaimsScene.prepare, TwoClaimsScene.ensure_first, TwoClaimsScene.start_first, TwoClaimsScene.stop_first),
        act=TwoClaimsScene.remove_first,
        expected=(("rename", ""), ("rename", ""), ("unlink", "vgpu.config"), ("rmdir", "")),
    ),
)
