"""Each operation of dra-plugin with the state it starts from and the calls it must make; crashes are tried on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from vgpu_testkit.crash_control import Call
from vgpu_testkit.dra_bench import Container, DraBench
from vgpu_testkit.dra_calls import REMOVED, STOPPED
from vgpu_testkit.kubelet_values import Device
from vgpu_testkit.manifests import Manifest, Share

CLAIM = Manifest(
    name="two-workers",
    uid="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10",
    shares=(
        Share(request="trainer", device="vgpu-5", cores="50", memory="40Gi", share_id="8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01"),
        Share(request="server", device="vgpu-1", cores="20", memory="8Gi", share_id="51c7b0de-9a39-4d0c-a3b4-5d4f9d3a7702"),
    ),
)

TRAIN = Container()
OTHER = Container(name="side", pod_uid="77777777-54f1-4c86-9b57-2f1d2b8f4c11")


@dataclass
class Scene:
    """Claims on one node; the steps that bring them from one state to the next. `environment` is dra-plugin's, besides."""

    bench: DraBench
    devices: list[Device] = field(default_factory=list)
    first: Container = TRAIN
    other: Container = OTHER
    manifests: ClassVar[tuple[Manifest, ...]] = (CLAIM,)
    environment: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for manifest in self.manifests:
            manifest.write(self.bench.claims)
        self.bench.dra.environment |= self.environment

    @property
    def second(self) -> Container:
        return self.first.again()

    async def begin(self) -> None:
        """Nothing is prepared, and the containers to come have ids that were never seen."""
        for container in (self.first, self.second, self.other):
            self.bench.end(container)
        await self.bench.unprepare_patiently(*self.manifests)
        await self.bench.until_trash_is_empty()
        self.first = self.second.again()
        self.other = self.other.again()

    async def prepare(self) -> None:
        self.devices = await self.bench.prepare(*self.manifests)

    async def ensure_first(self) -> None:
        await self.bench.ensure(CLAIM, self.first)

    async def ensure_second(self) -> None:
        await self.bench.ensure(CLAIM, self.second)

    async def evict_first(self) -> None:
        await self.bench.calls.synchronize([self.bench.shown(CLAIM, self.first)], session=3)
        await self.bench.ensure(CLAIM, self.other, session=3)

    async def start_first(self) -> None:
        self.bench.run(self.first)
        await self.bench.record_start(self.first)

    async def end_first(self) -> None:
        self.bench.end(self.first)

    async def record_pids(self) -> None:
        await self.bench.record_pids(CLAIM, self.first, self.first.pid, self.first.pid + 7)

    async def stop_first(self) -> None:
        self.bench.end(self.first)
        await self.bench.calls.release(self.first.runtime_id, STOPPED)

    async def remove_first(self) -> None:
        await self.bench.calls.release(self.first.runtime_id, REMOVED)

    async def unprepare(self) -> None:
        await self.bench.unprepare(*self.manifests)


SceneT = TypeVar("SceneT", bound=Scene)
Step = Callable[[SceneT], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[SceneT]):
    """`act` in the state that `before` leads to. `retry` is what its caller does after it failed, by default the same again.

    `expected` are calls that must be among those counted, in this order, each with the end of its path.
    """

    name: str
    scene: type[SceneT]
    before: tuple[Step[SceneT], ...] = ()
    act: Step[SceneT]
    retry: Step[SceneT] | None = None
    expected: tuple[tuple[str, str], ...]

    async def arrange(self, scene: SceneT) -> None:
        """The state that the operation starts from, whatever was before."""
        await scene.begin()
        for step in self.before:
            await step(scene)
        await scene.bench.until_trash_is_empty()

    def missing(self, calls: list[Call]) -> list[tuple[str, str]]:
        """What of `expected` does not follow in `calls` in this order."""
        rest = list(self.expected)
        for call in calls:
            if rest and call.name.startswith(rest[0][0]) and call.path.endswith(rest[0][1]):
                del rest[0]
        return rest


P, B = f"claims/{CLAIM.uid}", "binding.json"
RECORD = (("open", ".new-claim.json"), ("write", ".new-claim.json"), ("fsync", ".new-claim.json"), ("rename", "/claim.json"))
PARTITION = (
    ("mkdir", f".new-{TRAIN.partition}"),
    ("mkdir", "/config"),
    ("write", "/vgpu.config"),
    ("write", "/binding.json"),
    ("rename", f"{CLAIM.uid}/{TRAIN.partition}"),
)
BINDING = (("write", ".new-binding.json"), ("rename", "/binding.json"))
PIDS = (("open", ".new-pids.config"), ("write", ".new-pids.config"), ("rename", "/pids.config"))

OPERATIONS = (
    Operation(
        scene=Scene,
        name="prepare",
        act=Scene.prepare,
        expected=(
            ("mkdir", P),
            ("fsync", "/claims"),
            *RECORD,
            ("fsync", P),
            ("write", f"_{CLAIM.uid}.new"),
            ("fsync", f"_{CLAIM.uid}.new"),
            ("rename", f"_{CLAIM.uid}.json"),
            ("fsync", "/cdi"),
            *RECORD,
            ("fsync", P),
        ),
    ),
    Operation(scene=Scene, name="ensure", before=(Scene.prepare,), act=Scene.ensure_first, expected=PARTITION),
    Operation(
        scene=Scene,
        name="ensure, retried by a new container",
        before=(Scene.prepare,),
        act=Scene.ensure_first,
        retry=Scene.ensure_second,
        expected=PARTITION,
    ),
    Operation(
        scene=Scene,
        name="ensure over the last attempt",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first, Scene.end_first),
        act=Scene.ensure_second,
        expected=(*PARTITION[:-1], ("rename", ""), PARTITION[-1], ("unlink", "pids.config"), ("rmdir", "")),
    ),
    Operation(
        scene=Scene,
        name="ensure over a dead holder",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first, Scene.end_first),
        act=Scene.evict_first,
        expected=(*BINDING, ("rename", f"{CLAIM.uid}/{OTHER.partition}")),
    ),
    Operation(
        scene=Scene,
        name="record start",
        before=(Scene.prepare, Scene.ensure_first),
        act=Scene.start_first,
        expected=(*PIDS, *BINDING),
    ),
    Operation(
        scene=Scene,
        name="record pids",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first),
        act=Scene.record_pids,
        expected=PIDS,
    ),
    Operation(
        scene=Scene,
        name="release stopped",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first),
        act=Scene.stop_first,
        expected=BINDING,
    ),
    Operation(
        scene=Scene,
        name="release removed",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first, Scene.stop_first),
        act=Scene.remove_first,
        expected=(("rename", ""), ("unlink", "vgpu.config"), ("unlink", B), ("rmdir", "")),
    ),
    Operation(
        scene=Scene,
        name="unprepare",
        before=(Scene.prepare, Scene.ensure_first, Scene.start_first, Scene.stop_first),
        act=Scene.unprepare,
        expected=(
            ("unlink", f"_{CLAIM.uid}.json"),
            ("fsync", "/cdi"),
            ("rename", ""),
            ("fsync", "/claims"),
            ("unlink", "vgpu.config"),
            ("unlink", "claim.json"),
            ("rmdir", ""),
        ),
    ),
)
