"""The claims/ tree and the CDI folder: what start-up makes and removes, and what is thrown away."""

from __future__ import annotations

import os
import resource
from pathlib import Path, PurePosixPath

import pytest

from vgpu_daemon.run import StartFailed
from vgpu_dra import startup
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.ledger import Ledger
from vgpu_state.errors import StorageFailed
from vgpu_state.ids import ClaimUid
from vgpu_state.layout import Layout
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import BINDING, BOOT_ID, CLAIM_UID, PARTITION

OTHER = "aaaaaaaa-2222-4333-8444-555555555555"
CDI_FILE = "k8s.manager.nvidia.com-claim_3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10.json"


def test_skeleton_has_every_mount_point_empty_and_readable(tmp_path: Path) -> None:
    agent = Layout(PurePosixPath(tmp_path / "m"))
    tree = ClaimsTree(agent, tmp_path / "cdi")

    tree.make_skeleton()

    found = {str(p.relative_to(tmp_path)): f"{p.stat().st_mode & 0o777:o}" for p in sorted(tmp_path.rglob("*"))}
    assert found == {
        "cdi": "755",
        "m": "755",
        "m/claims": "711",
        "m/claims/.trash": "700",
        "m/registry": "711",
        "m/skeleton": "755",
        "m/skeleton/.host_proc": "755",
        "m/skeleton/config": "755",
        "m/skeleton/driver": "755",
        "m/skeleton/driver/libvgpu-control.so": "644",
        "m/skeleton/registry": "755",
        "m/skeleton/watcher": "755",
    }
    assert (tmp_path / "m/skeleton/driver/libvgpu-control.so").read_bytes() == b""


def test_skeleton_that_is_there_is_not_touched(node: DraTree) -> None:
    before = node.snapshot()

    node.tree.make_skeleton()

    assert node.snapshot() == before


def test_what_was_thrown_away_is_deleted_and_emptying_bears_repetition(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    node.claims.unprepare(CLAIM_UID)
    assert len(os.listdir(node.agent.trash)) == 1

    node.tree.empty_trash(is_inhabited=lambda _: False)
    node.tree.empty_trash(is_inhabited=lambda _: False)

    assert os.listdir(node.agent.trash) == []


def test_entry_of_the_trash_that_stays_keeps_no_other(node: DraTree) -> None:
    trash = Path(node.agent.trash)
    deep = trash / "deep.00112233"
    deep.joinpath(*"d" * 200).mkdir(parents=True)  # one descriptor for each level
    for number in range(5):
        (trash / f"other.{number}").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        failed = node.tree.empty_trash(is_inhabited=lambda _: False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert list(failed) == ["deep.00112233"]
    assert os.listdir(trash) == ["deep.00112233"]


@pytest.mark.parametrize("whole_claim", [False, True])
def test_what_a_living_container_has_mounted_stays_in_the_trash_until_it_ends(node: DraTree, whole_claim: bool) -> None:
    """It would find no limits for its next process, and go without."""
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    mounted = os.open(node.agent.config(CLAIM_UID, PARTITION), os.O_RDONLY)
    if whole_claim:
        node.claims.unprepare(CLAIM_UID)
    else:
        node.tree.discard_partition(CLAIM_UID, PARTITION)

    node.tree.empty_trash(is_inhabited=lambda binding: binding == BINDING)

    assert os.listdir(mounted) == ["vgpu.config"]
    node.tree.empty_trash(is_inhabited=lambda _: False)
    assert os.listdir(node.agent.trash) == []
    os.close(mounted)


def test_running_container_keeps_the_files_it_has_mounted(node: DraTree) -> None:
    """A bind mount pins the directory as an open descriptor does."""
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    mounted = os.open(node.agent.config(CLAIM_UID, PARTITION), os.O_RDONLY)

    node.tree.discard_partition(CLAIM_UID, PARTITION)

    limits = os.open("vgpu.config", os.O_RDONLY, dir_fd=mounted)
    assert os.read(limits, 10) == b"x"
    os.close(limits)
    os.close(mounted)


def test_leftovers_of_a_dead_writer_are_removed_and_nothing_else(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    kept = node.files()
    claim = Path(node.agent.claim(CLAIM_UID))
    (claim / f".new-{OTHER}_train/config").mkdir(parents=True)
    (claim / ".new-claim.json").touch()
    (claim / PARTITION / "config/.new-pids.config").touch()
    (node.cdi_dir / f".{CDI_FILE.removesuffix('.json')}.new").touch()
    (node.cdi_dir / "nvidia.yaml").touch()
    (node.cdi_dir / ".other.new").touch()

    removed = node.tree.remove_leftovers()

    assert node.files() == sorted([*kept, "cdi/.other.new", "cdi/nvidia.yaml"])
    assert len(removed) == 4


def test_cdi_files_of_ours_are_known_by_their_claim(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    (node.cdi_dir / "nvidia.json").touch()

    assert node.tree.spec_claims() == [CLAIM_UID]

    node.tree.remove_spec(CLAIM_UID)
    assert node.tree.spec_claims() == []


def test_cdi_file_that_is_a_link_is_refused_and_not_followed(node: DraTree) -> None:
    (node.root / "victim").write_bytes(b"kept")
    (node.cdi_dir / CDI_FILE).symlink_to(node.root / "victim")

    with pytest.raises(StorageFailed, match="ELOOP"):
        node.tree.write_spec(CLAIM_UID, b"{}")

    assert (node.root / "victim").read_bytes() == b"kept"


# Recovery


def recover(node: DraTree, *, boot_id: str = BOOT_ID) -> Ledger:
    """What a successor knows after its start."""
    ledger = Ledger()
    startup.recover(node.tree, node.reader, ledger, boot_id=boot_id, clock=lambda: 2000.0)
    return ledger


def test_successor_finds_claims_and_bindings_and_writes_nothing(node: DraTree) -> None:
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    before = node.snapshot()

    ledger = recover(node)

    assert ledger.records == {CLAIM_UID: record}
    assert ledger.all_bindings() == [(CLAIM_UID, PARTITION, BINDING)]
    assert ledger.bound_at(BINDING.runtime_id) == 2000.0
    assert node.snapshot() == before


def test_successor_after_a_reboot_drops_bindings_and_keeps_claims(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)

    ledger = recover(node, boot_id="next")

    assert ledger.all_bindings() == []
    assert node.reader.partitions(CLAIM_UID) == []
    record = node.reader.record(CLAIM_UID)
    assert record is not None
    assert (record.boot_id, ledger.records) == ("next", {CLAIM_UID: record})


def test_corrupt_record_harms_its_claim_only(node: DraTree) -> None:
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    other = ClaimUid(OTHER)
    Path(node.agent.claim(other)).mkdir()
    Path(node.agent.record(other)).write_bytes(b"torn")
    (node.cdi_dir / f"k8s.manager.nvidia.com-claim_{OTHER}.json").touch()

    ledger = recover(node)

    assert ledger.records == {CLAIM_UID: record}
    assert list(ledger.quarantined) == [other]
    assert ledger.quarantined[other].startswith("claim record is corrupt: ")
    assert Path(node.agent.record(other)).read_bytes() == b"torn"
    assert f"cdi/k8s.manager.nvidia.com-claim_{OTHER}.json" in node.files()


@pytest.mark.parametrize("spoil", ["link", "directory", "newer"])
def test_unusable_binding_harms_its_claim_only_and_its_directory_stays(node: DraTree, spoil: str) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"x", binding=BINDING)
    binding = Path(node.agent.binding(CLAIM_UID, PARTITION))
    content = binding.read_bytes()
    binding.unlink()
    if spoil == "link":
        binding.symlink_to("elsewhere")
    elif spoil == "directory":
        binding.mkdir()
    else:
        binding.write_bytes(content.replace(b'"schema": 1', b'"schema": 3'))
    inode = Path(node.agent.config(CLAIM_UID, PARTITION)).stat().st_ino

    ledger = recover(node)

    assert list(ledger.quarantined) == [CLAIM_UID]
    assert Path(node.agent.config(CLAIM_UID, PARTITION)).stat().st_ino == inode


def test_cdi_file_without_a_claim_is_removed(node: DraTree) -> None:
    (node.cdi_dir / f"k8s.manager.nvidia.com-claim_{OTHER}.json").touch()

    recover(node)

    assert node.files() == []


# Views


def test_both_views_of_one_directory_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "host/etc/vgpu-manager").mkdir(parents=True)
    (tmp_path / "agent").symlink_to(tmp_path / "host/etc/vgpu-manager")

    startup.compare_views(
        Layout(PurePosixPath(tmp_path / "agent")), Layout(PurePosixPath("/etc/vgpu-manager")), str(tmp_path / "host")
    )


def test_two_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "host/etc/vgpu-manager").mkdir(parents=True)
    (tmp_path / "agent").mkdir()

    with pytest.raises(StartFailed) as refusal:
        startup.compare_views(
            Layout(PurePosixPath(tmp_path / "agent")), Layout(PurePosixPath("/etc/vgpu-manager")), str(tmp_path / "host")
        )

    assert str(refusal.value) == (
        f"--manager-dir {tmp_path}/agent is not the host's /etc/vgpu-manager: the runtime would mount another directory; mount "
        "that one here or correct --host-manager-dir"
    )


def test_view_that_is_missing_is_refused_naming_it(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()

    with pytest.raises(StartFailed) as refusal:
        startup.compare_views(
            Layout(PurePosixPath(tmp_path / "agent")), Layout(PurePosixPath("/etc/vgpu-manager")), str(tmp_path / "host")
        )

    assert str(refusal.value) == (
        f"cannot compare the manager directory with the host's: {tmp_path}/host/etc/vgpu-manager: No such file or directory "
        "(--manager-dir, --host-manager-dir, --host-root)"
    )


def test_views_are_not_compared_without_a_host_root(tmp_path: Path) -> None:
    startup.compare_views(Layout(PurePosixPath(tmp_path / "none")), Layout(PurePosixPath("/etc/vgpu-manager")), "")
