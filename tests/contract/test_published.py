"""Our interface definitions say what the published ones say: same names, numbers and types, wherever we have an entry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

pytestmark = pytest.mark.published

OURS = Path(__file__).parents[2] / "shared/proto/protos/external"
KUBELET = "k8s.io/kubelet@v0.36.0/pkg/apis"
PAIRS = {
    "pluginregistration.proto": f"{KUBELET}/pluginregistration/v1/api.proto",
    "dra_v1.proto": f"{KUBELET}/dra/v1/api.proto",
    "dra_v1beta1.proto": f"{KUBELET}/dra/v1beta1/api.proto",
    "dra_health_v1alpha1.proto": f"{KUBELET}/dra-health/v1alpha1/api.proto",
    "podresources.proto": f"{KUBELET}/podresources/v1/api.proto",
    "nri.proto": "github.com/containerd/nri@v0.12.0/pkg/api/api.proto",
    "cri.proto": "k8s.io/cri-api@v0.36.0/pkg/apis/runtime/v1/api.proto",
}
# An enum's wire is an integer's; our subset of CRI reads `state` as a number on purpose.
LOOSENED = {FieldDescriptorProto.TYPE_ENUM: FieldDescriptorProto.TYPE_INT32}


def published_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '/var')}/.cache"
    root = Path(base) / "vgpu-published" / "mod"
    if not root.is_dir():
        pytest.fail(f"{root} is missing: run make published")
    return root


def describe(source: Path, scratch: Path) -> FileDescriptorProto:
    out = scratch / "descriptor"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source.parent}", f"--descriptor_set_out={out}", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def messages(file: FileDescriptorProto) -> dict[str, DescriptorProto]:
    found: dict[str, DescriptorProto] = {}

    def visit(message: DescriptorProto, prefix: str) -> None:
        found[prefix + message.name] = message
        for nested in message.nested_type:
            visit(nested, f"{prefix}{message.name}.")

    for message in file.message_type:
        visit(message, "")
    return found


def shape(field: FieldDescriptorProto) -> tuple[str, int, int, str]:
    kind = LOOSENED.get(field.type, field.type)
    is_number = kind == FieldDescriptorProto.TYPE_INT32
    return field.name, field.label, kind, "" if is_number else field.type_name


@pytest.mark.parametrize(("ours", "theirs"), sorted(PAIRS.items()))
def test_every_field_of_ours_is_published_as_such(ours: str, theirs: str, tmp_path: Path) -> None:
    mine, published = describe(OURS / ours, tmp_path), describe(published_root() / theirs, tmp_path)
    expected = messages(published)

    wrong = {
        f"{name}.{field.name}": shape(field)
        for name, message in messages(mine).items()
        for field in message.field
        if shape(field) not in {shape(f) for f in expected[name].field if f.number == field.number}
    }

    assert mine.package == published.package
    assert wrong == {}


@pytest.mark.parametrize(("ours", "theirs"), sorted(PAIRS.items()))
def test_every_method_of_ours_is_published_as_such(ours: str, theirs: str, tmp_path: Path) -> None:
    mine, published = describe(OURS / ours, tmp_path), describe(published_root() / theirs, tmp_path)

    def methods(file: FileDescriptorProto) -> set[tuple[str, str, str, str, bool]]:
        return {
            (service.name, m.name, m.input_type, m.output_type, m.server_streaming)
            for service in file.service
            for m in service.method
        }

    assert methods(mine) - methods(published) == set()


@pytest.mark.parametrize(("ours", "theirs"), sorted(PAIRS.items()))
def test_every_enum_value_of_ours_is_published_as_such(ours: str, theirs: str, tmp_path: Path) -> None:
    mine, published = describe(OURS / ours, tmp_path), describe(published_root() / theirs, tmp_path)

    def values(file: FileDescriptorProto) -> set[tuple[str, str, int]]:
        nested = {(f"{n}.{e.name}", v.name, v.number) for n, m in messages(file).items() for e in m.enum_type for v in e.value}
        return nested | {(e.name, v.name, v.number) for e in file.enum_type for v in e.value}

    assert values(mine) - values(published) == set()
