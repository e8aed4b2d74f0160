"""What is remembered of the claims tree, against a look at the whole of it, over a clock that stands still between ticks."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from vgpu_registry.bindings_tree import BindingsTree
from vgpu_state.ids import RuntimeId
from vgpu_testkit.registry_node import NodeContainer, RegistryNode, node_container

TICK_NS = 100_000_000  # a file system's clock may stand still for some milliseconds
CONTAINERS = st.integers(1, 4).map(node_container)
HOLDERS = st.integers(1, 6).map(lambda number: RuntimeId(f"{number:064x}"))


class Changes(RuleBasedStateMachine):
    """dra-plugin at work between scans. `written` is what the tree holds."""

    def __init__(self) -> None:
        super().__init__()
        self.node = RegistryNode(Path(tempfile.mkdtemp(prefix="vr-")))
        self.now_ns = 1_600_000_000_000_000_000
        self.tree = BindingsTree(self.node.layout, clock=lambda: self.now_ns)
        self.holder_by_container: dict[NodeContainer, RuntimeId] = {}
        self.removed = 0

    def teardown(self) -> None:
        self.a_scan_finds_who_holds_what()
        shutil.rmtree(self.node.root)

    @rule(container=CONTAINERS)
    def prepare(self, container: NodeContainer) -> None:
        (Path(self.node.layout.partition(container.claim_uid, container.partition)) / "config").mkdir(parents=True, exist_ok=True)
        self._stamp()

    @rule(container=CONTAINERS, runtime_id=HOLDERS)
    def bind(self, container: NodeContainer, runtime_id: RuntimeId) -> None:
        if runtime_id not in self.holder_by_container.values():
            self.node.bind(container, runtime_id=runtime_id)
            self.holder_by_container[container] = runtime_id
            self._stamp()

    @rule(container=CONTAINERS)
    def release(self, container: NodeContainer) -> None:
        if self.holder_by_container.pop(container, None) is not None:
            Path(self.node.layout.binding(container.claim_uid, container.partition)).unlink()
            self._stamp()

    @rule(container=CONTAINERS)
    def unprepare(self, container: NodeContainer) -> None:
        claim, trash = Path(self.node.layout.claim(container.claim_uid)), Path(self.node.layout.trash)
        if claim.exists():
            trash.mkdir(exist_ok=True)
            self.removed += 1
            claim.rename(trash / str(self.removed))
            self.holder_by_container.pop(container, None)
            self._stamp()

    @rule(passed_ns=st.sampled_from([1_000_000, TICK_NS, 10_000_000_000]))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule()
    def a_scan_finds_who_holds_what(self) -> None:
        self.tree.scan()
        assert {runtime_id: str(ref) for runtime_id, ref in self.tree.partition_by_id.items()} == {
            runtime_id: f"{container.claim_uid}/{container.partition}"
            for container, runtime_id in self.holder_by_container.items()
        }

    def _stamp(self) -> None:
        """What has changed just now has the mtime of the last tick."""
        claims = Path(self.node.layout.claims)
        for folder in (claims, *claims.glob("0*"), *claims.glob("0*/*")):
            if folder.stat().st_mtime_ns > self.now_ns:
                tick_ns = self.now_ns // TICK_NS * TICK_NS
                os.utime(folder, ns=(tick_ns, tick_ns))


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, database=None)
