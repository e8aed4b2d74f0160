"""Where claims come from, and which node the API server knows us as."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vgpu_daemon.run import StartFailed
from vgpu_dra.config import parse_config


def test_claims_come_from_the_api_server_under_the_nodes_name() -> None:
    assert parse_config(["--node-name=node-a.example.com"], {}).claims_from == "node-a.example.com"
    assert parse_config([], {"VGPU_NODE_NAME": "node-b"}).claims_from == "node-b"


def test_a_node_without_a_given_name_is_the_host_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-C")

    assert parse_config([], {}).claims_from == "node-c"


@pytest.mark.parametrize("name", ["Node-A", "a/b", "..", "a,spec.driver=x", "a b", "-a", "x" * 254])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(StartFailed, match=r"node name is .*\(--node-name\)"):
        parse_config([f"--node-name={name}"], {})


def test_a_directory_of_claims_needs_no_nodes_name() -> None:
    assert parse_config(["--claims-from=/claims", "--node-name=Not/One"], {}).claims_from == Path("/claims")
