"""dra-plugin's state on a real claims/ tree: driver files, device nodes, /proc and cgroups are folders, the clock is set by hand.

The manager directory's host view is another path than its agent view, as on a node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vgpu_daemon.procfs import Procfs
from vgpu_dra import startup
from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.claim_state import ClaimFiles, PreparedClaims
from vgpu_dra.eager_bindings import EagerBindings
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.effects.driver_files import NodePaths
from vgpu_dra.effects.node import Node
from vgpu_dra.inventory import Inventory
from vgpu_dra.ledger import Ledger
from vgpu_dra.partition_holders import PartitionFiles, PartitionHolders
from vgpu_dra.partition_state import Partitions
from vgpu_dra.synchronization import Synchronization
from vgpu_state.claims import Binding, PodRef, PreparedGpu, PreparedResult, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.ids import RuntimeId
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader
from vgpu_testkit.dra_values import BOOT_ID, CDI_MOUNTS, CLAIM, HOST, INVENTORY, MIG, MIG_INVENTORY, RULES, SERVER, TRAINER

FileState = tuple[int, int, bytes]


def allocated(result: PreparedResult) -> AllocatedResult:
    consumed = result.consumed if isinstance(result, PreparedVgpu) else None
    return AllocatedResult(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        cores_percent=consumed.cores_percent if consumed else None,
        memory_bytes=consumed.memory_bytes if consumed else None,
        has_admin_access=isinstance(result, PreparedGpu) and result.has_admin_access,
    )


ALLOCATION = Allocation(claim=CLAIM, results=(allocated(TRAINER), allocated(SERVER)))


@dataclass(kw_only=True)
class DraTree:
    """One node below `root`. `now_s` is the boot time that the state sees."""

    root: Path
    now_s: float = 1000.0
    inventory: Inventory = INVENTORY
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.agent = Layout(PurePosixPath(self.root / "manager"))
        self.cdi_dir = self.root / "cdi"
        self.dev_root = self.root / "dev"
        self.proc = self.root / "proc"
        self.cgroups = self.root / "cgroup"
        for directory in (self.dev_root, self.proc / "self", self.cgroups):
            directory.mkdir(parents=True)
        for name in (*(f"nvidia{i}" for i in range(8)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
            (self.dev_root / name).touch()
        libraries = self.root / "driver/usr/lib64"
        libraries.mkdir(parents=True)
        (libraries / f"libcuda.so.{INVENTORY.driver_version}").touch()
        (self.cgroups / "cgroup.procs").touch()
        (self.proc / "self" / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
        self.tree = ClaimsTree(self.agent, self.cdi_dir)
        self.tree.make_skeleton()
        for path in (self.agent.library("v1.0.0"), self.agent.preload_list, self.agent.device_client):
            Path(path).touch()
        self.reader = ClaimsReader(self.agent)
        self._begin(BOOT_ID)

    def _begin(self, boot_id: str) -> None:
        """The state of a process, over what the ledger holds."""
        self.node = Node(
            agent=self.agent,
            rules=RULES,
            paths=NodePaths(
                driver_root=self.root / "driver",
                host_driver_root=Path("/driver"),
                dev_root=self.dev_root,
                proc_root=self.proc,
            ),
            boot_id=boot_id,
            inventory=lambda: self.inventory,
        )
        self.holders = self._holders(self.tree, Procfs(proc_root=self.proc, cgroup_root=self.cgroups))
        self.partitions = self._partitions(self.tree, self.holders)
        self.synchronization = Synchronization(
            ledger=self.ledger, partitions=self.partitions, holders=self.holders, files=self.tree, node=self.node
        )
        self.eager_bindings = self.bindings_on(self.tree)
        self.claims = self.claims_on(self.tree)

    def restart(self, *, boot_id: str = BOOT_ID) -> None:
        """The process is another, which knows what it finds on disk. Raises what `startup.recover` does."""
        self.ledger = Ledger()
        startup.recover(self.tree, self.reader, self.ledger, boot_id=boot_id, clock=lambda: self.now_s)
        self._begin(boot_id)

    def enter_mig_mode(self) -> None:
        """GPU 3 has one MIG device, with the kernel driver's files and nodes."""
        self.inventory = MIG_INVENTORY
        capabilities = self.proc / f"driver/nvidia/capabilities/gpu3/mig/gi{MIG.gpu_instance}"
        for path, minor in ((capabilities, 417), (capabilities / f"ci{MIG.compute_instance}", 418)):
            path.mkdir(parents=True)
            (path / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
            node = self.dev_root / f"nvidia-caps/nvidia-cap{minor}"
            node.parent.mkdir(exist_ok=True)
            node.touch()

    def partitions_on(self, files: PartitionFiles, procfs: Procfs | None = None) -> Partitions:
        """EnsurePartition and the others over other files than the tree's own, or another look at processes."""
        procfs = procfs or Procfs(proc_root=self.proc, cgroup_root=self.cgroups)
        return self._partitions(files, self._holders(files, procfs))

    def bindings_on(self, files: PartitionFiles) -> EagerBindings:
        """BindPartition over other files than the tree's own."""
        holders = self._holders(files, Procfs(proc_root=self.proc, cgroup_root=self.cgroups))
        return EagerBindings(ledger=self.ledger, holders=holders, clock=lambda: self.now_s)

    def _holders(self, files: PartitionFiles, procfs: Procfs) -> PartitionHolders:
        return PartitionHolders(ledger=self.ledger, files=files, node=self.node, procfs=procfs, clock=lambda: self.now_s)

    def _partitions(self, files: PartitionFiles, holders: PartitionHolders) -> Partitions:
        return Partitions(ledger=self.ledger, files=files, node=self.node, holders=holders, clock=lambda: self.now_s)

    def claims_on(self, files: ClaimFiles) -> PreparedClaims:
        """Prepare and Unprepare over other files than the tree's own."""
        return self._claims(self.ledger, files)

    def claims_of(self, ledger: Ledger) -> PreparedClaims:
        """Prepare and Unprepare by what a successor of the process knows."""
        return self._claims(ledger, self.tree)

    def _claims(self, ledger: Ledger, files: ClaimFiles) -> PreparedClaims:
        return PreparedClaims(
            ledger=ledger,
            files=files,
            node=self.node,
            holders=self.holders,
            clock=lambda: self.now_s,
        )

    def run_container(self, runtime_id: RuntimeId, pod: PodRef, pids: Iterable[int], *, mounts: Iterable[Mount] = ()) -> None:
        """A cgroup of a container with these processes, whose mount table shows `mounts` (host view)."""
        path = f"/kubepods/burstable/pod{pod.uid}/{runtime_id}"
        directory = self.cgroups / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        for pid in pids:
            process = self.proc / str(pid)
            process.mkdir(exist_ok=True)
            (process / "cgroup").write_text(f"0::{path}\n")
            (process / "mountinfo").write_text(self.mount_table(mounts))

    def end_container(self, runtime_id: RuntimeId, pod: PodRef) -> None:
        """Its cgroup is gone."""
        directory = self.cgroups / "kubepods/burstable" / f"pod{pod.uid}" / runtime_id
        (directory / "cgroup.procs").unlink()
        directory.rmdir()

    def mount_table(self, mounts: Iterable[Mount]) -> str:
        """/proc/<pid>/mountinfo of a container with these mounts, later ones on top."""
        lines = ["10 1 0:9 / / rw - overlay overlay rw"]
        for number, mount in enumerate(mounts, start=11):
            parent = 11 if mount.destination.startswith("/etc/vgpu-manager/") else 10
            if mount.type == "tmpfs":
                lines.append(f"{number} {parent} 0:{number} / {mount.destination} rw - tmpfs tmpfs rw")
            else:
                source = mount.source.replace(str(HOST.root), str(self.agent.root), 1)
                lines.append(f"{number} {parent} 8:1 {source} {mount.destination} ro - ext4 /dev/sda1 rw")
        return "\n".join(lines) + "\n"

    def container_mounts(self, adjustment: Iterable[Mount]) -> list[Mount]:
        """What the runtime mounts: the CDI edits, each replaced by the adjustment's mount at the same destination."""
        by_destination = {m.destination: m for m in CDI_MOUNTS}
        return list((by_destination | {m.destination: m for m in adjustment}).values())

    def binding(self) -> Binding:
        """The only binding on disk."""
        ((uid, name),) = [(uid, name) for uid in self.reader.claim_uids() for name in self.reader.partitions(uid)]
        found = self.reader.binding(uid, name)
        assert found is not None
        return found

    def snapshot(self) -> dict[str, FileState]:
        """Inode, mtime and content of everything under the manager and the CDI directory, by path."""
        return {
            os.path.relpath(path, self.root): (status.st_ino, status.st_mtime_ns, _content(path))
            for top in (Path(self.agent.root), self.cdi_dir)
            for path in sorted(top.rglob("*"))
            if (status := path.lstat())
        }

    def files(self) -> list[str]:
        """Paths below claims/ and in the CDI directory, without the trash's content and the empty trash itself."""
        claims = Path(self.agent.claims)
        below = [str(p.relative_to(claims)) for p in claims.rglob("*")]
        kept = [p for p in below if p != ".trash" and not p.startswith(".trash/")]
        return sorted(kept + [f"cdi/{p.name}" for p in self.cdi_dir.iterdir()])


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
