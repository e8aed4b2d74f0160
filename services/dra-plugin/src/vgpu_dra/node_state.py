"""The claims and partitions of this node, put together: one ledger, one tree, and the operations over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vgpu_daemon import boottime
from vgpu_daemon.procfs import Procfs, has_only_cgroup_v2
from vgpu_dra.claim_state import PreparedClaims
from vgpu_dra.config import Config
from vgpu_dra.eager_bindings import EagerBindings
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.effects.node import Node
from vgpu_dra.housekeeping import Housekeeping
from vgpu_dra.inventory import Inventory
from vgpu_dra.ledger import Ledger
from vgpu_dra.partition_holders import PartitionHolders
from vgpu_dra.partition_state import Partitions
from vgpu_dra.policy.compatibility import compatibility_mode
from vgpu_dra.synchronization import Synchronization


class NodeState:
    """Constructing it does no I/O but asking which cgroups the node has."""

    def __init__(self, settings: Config, *, boot_id: str, inventory: Callable[[], Inventory]) -> None:
        clock = boottime.boottime_s
        self.ledger = ledger = Ledger()
        self.tree = tree = ClaimsTree(settings.agent, settings.cdi_dir)
        mode = compatibility_mode(settings.gates, has_only_cgroup_v2=has_only_cgroup_v2(settings.cgroup_root))
        rules = replace(settings.rules, compatibility=mode)
        node = Node(agent=settings.agent, rules=rules, paths=settings.paths, boot_id=boot_id, inventory=inventory)
        procfs = Procfs(proc_root=settings.proc_root, cgroup_root=settings.cgroup_root)
        holders = PartitionHolders(ledger=ledger, files=tree, node=node, procfs=procfs, clock=clock)
        self.partitions = Partitions(ledger=ledger, files=tree, node=node, holders=holders, clock=clock)
        self.synchronization = Synchronization(ledger=ledger, partitions=self.partitions, holders=holders, files=tree, node=node)
        self.eager_bindings = EagerBindings(ledger=ledger, holders=holders, clock=clock)
        self.claims = PreparedClaims(ledger=ledger, files=tree, node=node, holders=holders, clock=clock)
        self.housekeeping = Housekeeping(trash=tree, ledger=ledger, claims=self.claims, is_inhabited=holders.is_inhabited)
