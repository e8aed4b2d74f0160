"""This node, as Prepare and EnsurePartition look at it: which boot, which GPUs and driver files, which library set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vgpu_dra import cdi
from vgpu_dra.effects.driver_files import NodePaths, find_node_files, has_cuda
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy import assigners
from vgpu_dra.rules import NodeRules
from vgpu_state.claims import ClaimRecord, PreparedMig, PreparedResult
from vgpu_state.errors import PreconditionFailed
from vgpu_state.layout import Layout


class Node:
    """Looks at the disk at every call, but for the inventory, which is `inventory`'s."""

    def __init__(
        self, *, agent: Layout, rules: NodeRules, paths: NodePaths, boot_id: str, inventory: Callable[[], Inventory]
    ) -> None:
        self._agent = agent
        self.rules = rules
        self._paths = paths
        self.boot_id = boot_id
        self._inventory = inventory

    def inventory(self) -> Inventory:
        """The GPUs of this node.

        Raises:
            NotReady: they are not known yet.
        """
        return self._inventory()

    def spec(self, record: ClaimRecord, inventory: Inventory) -> bytes:
        """The CDI file of a claim on this node now.

        Raises:
            PreconditionFailed: a GPU or MIG device of the claim is not there or has no device node, or the driver's libraries
                are missing.
        """
        files = find_node_files(inventory, self._paths)
        for result in record.results:
            self._check_nodes(result, files, inventory, where=f"claim {record.claim} request {result.request}")
        if not has_cuda(files, version := inventory.driver_version):
            # Without them the claim's pods would start and find no CUDA, or another's.
            raise PreconditionFailed(
                f"claim {record.claim}: the driver's libraries of version {version} are not under {self._paths.driver_root} "
                f"(--driver-root); NVML still reports {version}: was the driver upgraded without a restart?"
            )
        edits = {r.grant.key: assigners.device_edits(record, r, rules=self.rules) for r in record.vgpus}
        return cdi.encode_spec(record, files=files, edits=edits)

    def check_library_set(self) -> None:
        """Returns when what the containers mount is on the node.

        Raises:
            PreconditionFailed: naming the file that is missing.
        """
        for path in (
            self._agent.library(self.rules.library_version),
            self._agent.preload_list,
            self._agent.device_client,
        ):
            if not Path(path).is_file():
                raise PreconditionFailed(f"{path} is missing: the enforcement library is not installed on this node")

    def _check_nodes(self, result: PreparedResult, files: cdi.NodeFiles, inventory: Inventory, *, where: str) -> None:
        gpu = inventory.by_uuid(result.gpu_uuid)
        if gpu is None:
            raise PreconditionFailed(f"{where}: GPU {result.gpu_uuid} is not on this node any more")
        if gpu.uuid not in files.node_by_gpu:
            raise PreconditionFailed(f"{where}: GPU {gpu.uuid} has no device node under {self._paths.dev_root}")
        if not isinstance(result, PreparedMig):
            return
        if not any(mig.uuid == result.mig_uuid for mig in gpu.mig_devices):
            raise PreconditionFailed(f"{where}: MIG device {result.mig_uuid} is not on GPU {gpu.uuid} any more")
        if result.mig_uuid not in files.caps_by_mig:
            raise PreconditionFailed(
                f"{where}: MIG device {result.mig_uuid} has no nvidia-cap nodes under {self._paths.dev_root}/nvidia-caps, or "
                f"{self._paths.proc_root} does not say which they are"
            )

    def agent_path(self, host_path: str) -> str:
        """A path below the manager directory, given as the runtime sees it, as this process does, links resolved."""
        below = host_path.removeprefix(str(self.rules.host.root))
        return str(Path(f"{self._agent.root}{below}").resolve())
