"""Text from outside that is no identifier is refused, naming the field and the allowed form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vgpu_state import ids
from vgpu_state.errors import MalformedInput

UUID = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"
HEX64 = "9f3d6c0e4b6a41d2b7b0f5a1d2c3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b"

Parser = Callable[[str], str]

ACCEPTED: list[tuple[Parser, str]] = [
    (ids.parse_claim_uid, UUID),
    (ids.parse_pod_uid, UUID),
    (ids.parse_container_name, "a"),
    (ids.parse_container_name, "train-2"),
    (ids.parse_container_name, "a" * 63),
    (ids.parse_request_name, "gpu"),
    (ids.parse_request_name, "gpu/large"),
    (ids.parse_device_name, "vgpu-15"),
    (ids.parse_pool_name, "node-a"),
    (ids.parse_pool_name, "node-a.example.com/rack-1"),
    (ids.parse_share_id, ""),
    (ids.parse_share_id, UUID),
    (ids.parse_runtime_id, HEX64),
    (ids.parse_gpu_uuid, f"GPU-{UUID}"),
    (ids.parse_partition_name, f"{UUID}_train"),
    (ids.parse_partition_name, "cg-cadb34eaeab7"),
    (ids.parse_register_uuid, UUID),
    (ids.parse_grant_key, "4e2893ec0fa33030"),
    (ids.parse_nonce, "c0ffee00c0ffee00c0ffee00c0ffee05"),
]

FORMS: list[tuple[Parser, str, str, str]] = [
    (ids.parse_claim_uid, UUID, "claim uid is", "expected a lower-case UUID"),
    (ids.parse_pod_uid, UUID, "pod uid is", "expected a lower-case UUID (static pods have none)"),
    (ids.parse_container_name, "train", "container name is", "expected a DNS label of at most 63 characters"),
    (ids.parse_request_name, "gpu", "request name is", "expected a DNS label, or two joined by a slash"),
    (ids.parse_device_name, "vgpu-5", "device name is", "expected a DNS label of at most 63 characters"),
    (ids.parse_pool_name, "node-a", "pool name is", "expected DNS subdomains joined by slashes"),
    (ids.parse_share_id, UUID, "shareID is", "expected a lower-case UUID, or nothing"),
    (ids.parse_runtime_id, HEX64, "runtime container id is", "expected 64 lower-case hex digits"),
    (ids.parse_gpu_uuid, f"GPU-{UUID}", "GPU UUID is", "expected GPU- and a lower-case UUID"),
    (ids.parse_partition_name, f"{UUID}_train", "partition is", "expected <pod uid>_<container name>, or cg- and 12 hex digits"),
    (
        ids.parse_partition_name,
        "cg-cadb34eaeab7",
        "partition is",
        "expected <pod uid>_<container name>, or cg- and 12 hex digits",
    ),
    (ids.parse_register_uuid, UUID, "register uuid of", "expected a lower-case UUID"),
    (ids.parse_grant_key, "4e2893ec0fa33030", "grant key is", "expected 16 lower-case hex digits"),
    (ids.parse_nonce, "c0ffee00c0ffee00c0ffee00c0ffee05", "grant nonce of", "expected 32 lower-case hex digits"),
]

SPOILED: list[tuple[str, Callable[[str], str]]] = [
    ("slash in front", lambda good: f"/{good}"),
    ("slash at the end", lambda good: f"{good}/"),
    ("two slashes", lambda good: f"{good}//{good}"),
    ("dot-dot", lambda _: ".."),
    ("dot-dot below", lambda good: f"{good}/../x"),
    ("dot", lambda _: "."),
    ("leading dot", lambda good: f".{good}"),
    ("NUL", lambda good: f"{good[:-1]}\0"),
    ("NUL after", lambda good: f"{good}\0"),
    ("newline within", lambda good: f"{good[:2]}\n{good[2:]}"),
    ("trailing newline", lambda good: f"{good}\n"),
    ("space", lambda good: f"{good} "),
    ("upper case", lambda good: good.swapcase()),
    ("over-long", lambda good: good + "a" * 300),
    ("Cyrillic a", lambda good: f"\u0430{good[1:]}"),
    ("Arabic digit", lambda good: f"{good[:-1]}\u0661"),
    ("comma", lambda good: f"{good},"),
]


@pytest.mark.parametrize(("parse", "text"), ACCEPTED)
def test_well_formed_text_is_kept_as_it_is(parse: Parser, text: str) -> None:
    assert parse(text) == text


@pytest.mark.parametrize("spoil", [spoil for _, spoil in SPOILED], ids=[name for name, _ in SPOILED])
@pytest.mark.parametrize(("parse", "good", "field", "allowed"), FORMS, ids=[parse.__name__ for parse, _, _, _ in FORMS])
def test_malformed_text_is_refused_with_field_and_allowed_form(
    parse: Parser, good: str, field: str, allowed: str, spoil: Callable[[str], str]
) -> None:
    with pytest.raises(MalformedInput) as refusal:
        parse(spoil(good))

    assert str(refusal.value).startswith(field)
    assert str(refusal.value).endswith(allowed)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (ids.parse_claim_uid, ""),
        (ids.parse_claim_uid, UUID.replace("-", "")),
        (ids.parse_pod_uid, "abc"),
        (ids.parse_container_name, "-a"),
        (ids.parse_container_name, "a-"),
        (ids.parse_container_name, "a" * 64),
        (ids.parse_container_name, "a.b"),
        (ids.parse_request_name, "gpu/large/huge"),
        (ids.parse_request_name, "gpu/"),
        (ids.parse_pool_name, "a" * 254),
        (ids.parse_runtime_id, HEX64[:-1]),
        (ids.parse_runtime_id, HEX64 + "0"),
        (ids.parse_gpu_uuid, f"MIG-{UUID}"),
        (ids.parse_gpu_uuid, UUID),
        (ids.parse_partition_name, UUID),
        (ids.parse_partition_name, f"{UUID}_a_b"),
        (ids.parse_partition_name, f"{UUID}-train"),
        (ids.parse_partition_name, "cg-cadb34eaeab"),
        (ids.parse_partition_name, "cg-cadb34eaeab70"),
        (ids.parse_partition_name, "pod-aa540b231faf-app/app"),
    ],
)
def test_text_of_another_form_is_refused(parse: Parser, text: str) -> None:
    with pytest.raises(MalformedInput):
        parse(text)


def test_refusal_shows_control_characters_escaped_and_long_text_cut() -> None:
    with pytest.raises(MalformedInput) as refusal:
        ids.parse_claim_uid("x\n" + "y" * 100)

    assert str(refusal.value) == r"claim uid is 'x\n" + "y" * 78 + "…'; expected a lower-case UUID"


def test_refusal_of_a_nonce_shows_only_its_length() -> None:
    with pytest.raises(MalformedInput) as refusal:
        ids.parse_nonce("c0ffee00")

    assert str(refusal.value) == "grant nonce of 8 characters; expected 32 lower-case hex digits"


def test_partition_name_joins_pod_and_container() -> None:
    name = ids.partition_name(ids.parse_pod_uid(UUID), ids.parse_container_name("train"))

    assert name == "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10_train"


def test_main_request_is_the_name_before_the_alternative() -> None:
    assert ids.main_request(ids.parse_request_name("gpu/large")) == "gpu"
    assert ids.main_request(ids.parse_request_name("gpu")) == "gpu"
