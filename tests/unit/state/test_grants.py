"""The env entries that show a grant. Literal values are those of examples/."""

from __future__ import annotations

import pytest

from vgpu_state import grants
from vgpu_state.errors import MalformedInput
from vgpu_testkit.dra_values import CLAIM_UID, SERVER, TRAINER

KEY = "4e2893ec0fa33030"
VALUE = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/trainer/c0ffee00c0ffee00c0ffee00c0ffee05"


def test_keys_of_the_example_claim_are_its_hashes() -> None:
    keys = [
        grants.grant_key(claim_uid=CLAIM_UID, request=r.request, pool=r.pool, device=r.device, share_id=r.share_id)
        for r in (TRAINER, SERVER)
    ]

    assert keys == ["4e2893ec0fa33030", "a8de55c43130f206"]


def test_env_entry_of_the_example_claim() -> None:
    entry = grants.encode_grant_env(
        key=TRAINER.grant.key, claim_uid=CLAIM_UID, request=TRAINER.request, nonce=TRAINER.grant.nonce
    )

    assert entry == ("VGPU_GRANT_4e2893ec0fa33030=3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/trainer/c0ffee00c0ffee00c0ffee00c0ffee05")


def test_entries_of_an_environment_are_those_whose_name_begins_as_a_grants_does() -> None:
    env = ["PATH=/bin", f"VGPU_GRANT_{KEY}={VALUE}", "VGPU_GRANT_=", "VGPU_GRANT_x", "A=VGPU_GRANT_y=z", "VGPU_GRANTS=1"]

    assert grants.grant_entries(env) == [(KEY, VALUE), ("", ""), ("x", "")]


def test_grant_is_parsed_into_claim_request_and_nonce() -> None:
    grant = grants.parse_grant(KEY, VALUE)

    assert (grant.key, grant.claim_uid, grant.request, grant.nonce) == (
        "4e2893ec0fa33030",
        "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10",
        "trainer",
        "c0ffee00c0ffee00c0ffee00c0ffee05",
    )


def test_request_with_an_alternative_keeps_its_slash() -> None:
    assert grants.parse_grant(KEY, VALUE.replace("trainer", "trainer/large")).request == "trainer/large"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("", VALUE, "grant key is ''; expected 16 lower-case hex digits"),
        ("4E2893EC0FA33030", VALUE, "grant key is '4E2893EC0FA33030'; expected 16 lower-case hex digits"),
        (KEY, "", "env VGPU_GRANT_4e2893ec0fa33030: claim uid is ''; expected a lower-case UUID"),
        (KEY, "../" + VALUE, "env VGPU_GRANT_4e2893ec0fa33030: claim uid is '..'; expected a lower-case UUID"),
        (
            KEY,
            VALUE.replace("/trainer/", "/"),
            "env VGPU_GRANT_4e2893ec0fa33030: request name is ''; expected a DNS label, or two joined by a slash",
        ),
        (
            KEY,
            VALUE.replace("trainer", "a/b/c"),
            "env VGPU_GRANT_4e2893ec0fa33030: request name is 'a/b/c'; expected a DNS label, or two joined by a slash",
        ),
        (
            KEY,
            VALUE[:-2],
            "env VGPU_GRANT_4e2893ec0fa33030: grant nonce of 30 characters; expected 32 lower-case hex digits",
        ),
        (
            KEY,
            VALUE + "\n",
            "env VGPU_GRANT_4e2893ec0fa33030: grant nonce of 33 characters; expected 32 lower-case hex digits",
        ),
    ],
)
def test_malformed_grant_is_refused_naming_the_entry(key: str, value: str, words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        grants.parse_grant(key, value)

    assert str(refusal.value) == words


def test_nonce_is_in_no_text_of_a_grant() -> None:
    shown = grants.parse_grant(KEY, VALUE)

    assert "c0ffee" not in f"{shown!r} {shown} {TRAINER.grant!r} {TRAINER!r}"


def test_grants_beyond_one_more_than_a_container_can_have_are_not_even_read() -> None:
    env = (f"VGPU_GRANT_{i:016x}={VALUE}" for i in range(1_000_000_000))

    assert len(grants.grant_entries(env)) == 129


def test_more_grants_than_a_container_can_have_are_refused() -> None:
    grants.check_count(128)

    with pytest.raises(MalformedInput) as refusal:
        grants.check_count(129)

    assert str(refusal.value) == "more than 128 grants (VGPU_GRANT_…) are shown; a container has at most 128"
