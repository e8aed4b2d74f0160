"""Claims from a directory of manifests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu_dra.effects.manifest_claims import ManifestClaims
from vgpu_state.errors import MalformedInput, PreconditionFailed, StorageFailed
from vgpu_testkit.dra_values import CLAIM, CLAIM_UID

CLAIM_YAML = f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: two-workers, namespace: research, uid: {CLAIM_UID}}}
---
kind: Pod
metadata: {{name: two-workers, namespace: research}}
---
"""


def test_claim_is_found_by_namespace_and_name_among_other_documents(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: ConfigMap\nmetadata: {name: two-workers, namespace: research}\n")
    (tmp_path / "b.yml").write_text(CLAIM_YAML)

    doc = ManifestClaims(tmp_path).fetch(CLAIM)

    assert (doc["kind"], doc["metadata"]["uid"]) == ("ResourceClaim", CLAIM_UID)


def test_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "ResourceClaim", "metadata": {"name": "two-workers", "namespace": "research"}}')

    assert ManifestClaims(tmp_path).fetch(CLAIM)["kind"] == "ResourceClaim"


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(CLAIM_YAML)
    claims = ManifestClaims(tmp_path)
    claims.fetch(CLAIM)

    path.write_text(CLAIM_YAML.replace("research", "elsewhere"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(PreconditionFailed):
        claims.fetch(CLAIM)
    path.unlink()
    (tmp_path / "b.yaml").write_text(CLAIM_YAML)
    assert claims.fetch(CLAIM)["metadata"]["name"] == "two-workers"


def test_claim_in_no_file_is_refused_naming_claim_and_directory(tmp_path: Path) -> None:
    (tmp_path / ".hidden.yaml").write_text(CLAIM_YAML)
    (tmp_path / "a.yaml.bak").write_text(CLAIM_YAML)

    with pytest.raises(PreconditionFailed) as refusal:
        ManifestClaims(tmp_path).fetch(CLAIM)

    assert str(refusal.value) == f"no ResourceClaim research/two-workers in {tmp_path} (--claims-from)"


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"a: b: c"])
def test_file_that_is_no_yaml_is_refused_naming_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.yaml").write_bytes(content)

    with pytest.raises(MalformedInput, match=rf"^{tmp_path}/a\.yaml is no YAML: "):
        ManifestClaims(tmp_path).fetch(CLAIM)


def test_broken_file_does_not_keep_the_claims_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text(CLAIM_YAML)

    assert ManifestClaims(tmp_path).fetch(CLAIM)["metadata"]["name"] == "two-workers"


def test_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"#" * ((1 << 20) + 1))

    with pytest.raises(MalformedInput) as refusal:
        ManifestClaims(tmp_path).fetch(CLAIM)

    assert str(refusal.value) == f"{tmp_path}/a.yaml has 1048577 bytes; a manifest has at most 1048576"


def test_directory_that_cannot_be_read_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed) as refusal:
        ManifestClaims(tmp_path / "none").fetch(CLAIM)

    assert str(refusal.value) == f"cannot read manifests from {tmp_path}/none: ENOENT (No such file or directory)"
