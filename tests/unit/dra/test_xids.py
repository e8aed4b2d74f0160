"""How much an XID counts: the built-in list, and what operators say over it."""

from __future__ import annotations

import pytest

from vgpu_dra.policy.xids import XidClass, XidList, XidRules, parse_xids

CRITICAL, BENIGN, DISABLED = XidClass.CRITICAL, XidClass.BENIGN, XidClass.DISABLED


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_what_an_application_causes_is_benign(code: int) -> None:
    assert XidRules().judge(code) is BENIGN


@pytest.mark.parametrize("code", [48, 62, 63, 64, 69, 74, 79, 94, 95, 119, 120, 999, 0])
def test_everything_else_is_critical(code: int) -> None:
    assert XidRules().judge(code) is CRITICAL


@pytest.mark.parametrize(
    ("enabled", "disabled", "ignored", "of_79", "of_31", "of_94"),
    [
        ("", "", "", CRITICAL, BENIGN, CRITICAL),
        ("", "", "94", CRITICAL, BENIGN, BENIGN),
        ("", "94", "", CRITICAL, BENIGN, DISABLED),
        ("", "all", "", DISABLED, DISABLED, DISABLED),
        ("", "94,xids", "", DISABLED, DISABLED, DISABLED),
        ("31", "", "", CRITICAL, CRITICAL, CRITICAL),
        ("all", "", "94", CRITICAL, CRITICAL, CRITICAL),
        ("all", "all", "", CRITICAL, CRITICAL, CRITICAL),
        ("79", "all", "", CRITICAL, DISABLED, DISABLED),
        ("94", "94", "94", CRITICAL, BENIGN, CRITICAL),
    ],
)
def test_enabled_wins_over_disabled_and_the_built_in_list(
    enabled: str, disabled: str, ignored: str, of_79: XidClass, of_31: XidClass, of_94: XidClass
) -> None:
    rules = XidRules(enabled=parse_xids(enabled), disabled=parse_xids(disabled), ignored=parse_xids(ignored).codes)

    assert (rules.judge(79), rules.judge(31), rules.judge(94)) == (of_79, of_31, of_94)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", XidList()),
        (" , ,", XidList()),
        ("79, 94 ,79", XidList(codes=frozenset({79, 94}))),
        ("ALL", XidList(is_everything=True)),
        ("79,Xids,x", XidList(is_everything=True)),
        ("79,x,-1,1.5", XidList(codes=frozenset({79}), malformed=("x", "-1", "1.5"))),
        ("18446744073709551615", XidList(codes=frozenset({18446744073709551615}))),
        ("18446744073709551616", XidList(malformed=("18446744073709551616",))),
        ("٧٩", XidList(malformed=("٧٩",))),
    ],
)
def test_list_of_xids_is_read_as_the_device_plugin_reads_it(text: str, parsed: XidList) -> None:
    assert parse_xids(text) == parsed


@pytest.mark.parametrize(
    ("enabled", "disabled", "at_anything", "beyond"),
    [("", "", True, True), ("", "94", True, True), ("", "all", False, False), ("79", "all", True, False)],
)
def test_what_is_looked_at_where_checks_are_switched_off(enabled: str, disabled: str, at_anything: bool, beyond: bool) -> None:
    rules = XidRules(enabled=parse_xids(enabled), disabled=parse_xids(disabled))

    assert (rules.looks_at_anything, rules.looks_beyond_xids) == (at_anything, beyond)
