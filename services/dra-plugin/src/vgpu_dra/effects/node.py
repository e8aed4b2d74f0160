"""This node, as Prepare and EnsurePartition look at it: which boot, which GPUs and driver files, which library set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vgpu_dra import cdi
from vgpu_dra.effects.driver_files import find_node_files, has_cuda
from vgpu_dra.inventory import Inventory
from vgpu_dra.rules import NodeRules
from vgpu_state.claims import ClaimRecord
from vgpu_state.errors import PreconditionFailed
from vgpu_state.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Where the driver and the device nodes are, as this process and as the runtime see them."""

    driver_root: Path
    host_driver_root: Path
    dev_root: Path


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
            PreconditionFailed: a GPU of the claim is not there or has no device node, or the driver's libraries are missing.
        """
        files = find_node_files(
            inventory,
            driver_root=self._paths.driver_root,
            host_driver_root=self._paths.host_driver_root,
            dev_root=self._paths.dev_root,
        )
        for result in record.results:
            if inventory.by_uuid(result.gpu_uuid) is None:
                raise PreconditionFailed(
                    f"claim {record.claim} request {result.request}: GPU {result.gpu_uuid} is not on this node any more"
                )
            if result.gpu_uuid not in files.node_by_gpu:
                raise PreconditionFailed(
                    f"claim {record.claim} request {result.request}: GPU {result.gpu_uuid} has no device node under "
                    f"{self._paths.dev_root}"
                )
        if not has_cuda(files, version := inventory.driver_version):
            # Without them the claim's pods would start and find no CUDA, or another's.
            raise PreconditionFailed(
                f"claim {record.claim}: the driver's libraries of version {version} are not under {self._paths.driver_root} "
                f"(--driver-root); NVML still reports {version}: was the driver upgraded without a restart?"
            )
        return cdi.encode_spec(record, files=files, host=self.rules.host, library_version=self.rules.library_version)

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

    def agent_path(self, host_path: str) -> str:
        """A path below the manager directory, given as the runtime sees it, as this process does, links resolved."""
        below = host_path.removeprefix(str(self.rules.host.root))
        return str(Path(f"{self._agent.root}{below}").resolve())
