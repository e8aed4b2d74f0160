"""argv and environment as what dra-plugin is told; a value that is not of its form is one sentence naming the option."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vgpu_daemon.run import BadUsage
from vgpu_dra.config import parse_config
from vgpu_dra.policy.xids import XidClass
from vgpu_dra.rules import OfferRules, Ratios
from vgpu_state.claims import DeviceKind


def test_defaults_are_those_of_a_node() -> None:
    config = parse_config(["--node-name=node-a"], {})

    assert (str(config.agent.root), str(config.rules.host.root)) == ("/etc/vgpu-manager", "/etc/vgpu-manager")
    assert (config.host_root, config.cdi_dir, config.claims_from) == ("/proc/1/root", Path("/var/run/cdi"), "node-a")
    assert config.rules.runtime_handlers == ("", "nvidia*")
    assert (config.rules.library_version, config.rules.allows_privileged) == ("v1.0.0", False)
    assert config.rules.private_paths == (
        "/etc/vgpu-manager",
        "/var/run/cdi",
        "/run/vgpu-manager",
        "/var/lib/kubelet/plugins",
        "/var/lib/kubelet/plugins_registry",
    )
    assert config.paths.host_driver_root == config.paths.driver_root == Path("/")


def test_private_paths_follow_the_directories_that_are_given() -> None:
    config = parse_config(
        ["--host-manager-dir=/m", "--cdi-dir=/c", "--kubelet-dir=/k"], {"VGPU_RUN_DIR": "/r", "VGPU_MANAGER_DIR": "/agent"}
    )

    assert config.rules.private_paths == ("/m", "/c", "/r", "/k/plugins", "/k/plugins_registry")
    assert str(config.agent.root) == "/agent"


def test_host_may_see_the_driver_elsewhere() -> None:
    config = parse_config(["--driver-root=/driver", "--host-driver-root=/run/nvidia/driver"], {})

    assert (config.paths.driver_root, config.paths.host_driver_root) == (Path("/driver"), Path("/run/nvidia/driver"))


def test_a_gpu_is_given_away_as_it_is_unless_the_operator_says_otherwise() -> None:
    config = parse_config([], {})

    assert (config.offer, config.rules.ratios) == (OfferRules(), Ratios())
    assert config.offer.kind_without_counters is DeviceKind.VGPU


def test_ratios_and_the_kind_without_counters_are_the_operators() -> None:
    environment = {"VGPU_DEVICE_CORES_RATIO": "200", "VGPU_DEVICE_KIND_WITHOUT_COUNTERS": "gpu"}

    config = parse_config(["--device-memory-ratio=150"], environment)

    assert config.rules.ratios == Ratios(cores_percent=200, memory_percent=150)
    assert config.offer == OfferRules(ratios=config.rules.ratios, kind_without_counters=DeviceKind.GPU)


def test_operators_say_how_often_gpus_are_looked_at_and_which_xids_count() -> None:
    config = parse_config(["--gpu-poll=2.5", "--additional-xids-to-ignore=94, 95"], {"DP_DISABLE_HEALTHCHECKS": "79"})

    assert (config.gpu_poll_s, parse_config([], {}).gpu_poll_s) == (2.5, 10)
    assert [config.xid_rules.judge(code) for code in (94, 95, 79, 48)] == [
        XidClass.BENIGN,
        XidClass.BENIGN,
        XidClass.DISABLED,
        XidClass.CRITICAL,
    ]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--device-cores-ratio=0", "--device-cores-ratio is '0'; expected a whole number of percent from 1 to 1000"),
        ("--device-memory-ratio=1001", "--device-memory-ratio is '1001'; expected a whole number of percent from 1 to 1000"),
        ("--device-memory-ratio=1.5", "--device-memory-ratio is '1.5'; expected a whole number of percent from 1 to 1000"),
        ("--device-memory-ratio=", "--device-memory-ratio is ''; expected a whole number of percent from 1 to 1000"),
        ("--device-kind-without-counters=mig", "--device-kind-without-counters is 'mig'; expected vgpu or gpu"),
        ("--gpu-poll=0", "--gpu-poll is '0'; expected 0.01 to 600 seconds"),
        ("--gpu-poll=often", "--gpu-poll is 'often'; expected 0.01 to 600 seconds"),
        ("--gpu-poll=nan", "--gpu-poll is 'nan'; expected 0.01 to 600 seconds"),
        ("--additional-xids-to-ignore=94,x", "--additional-xids-to-ignore is '94,x'; expected numbers separated by commas"),
        ("--additional-xids-to-ignore=all", "--additional-xids-to-ignore is 'all'; expected numbers separated by commas"),
        ("--manager-dir=m", "--manager-dir is 'm'; expected an absolute path"),
        ("--cdi-dir=", "--cdi-dir is ''; expected an absolute path"),
        ("--claims-from=manifests", "--claims-from is 'manifests'; expected an absolute path"),
        ("--library-version=../v1", "--library-version is '../v1'; expected letters, digits, dots and dashes"),
        ("--library-version=", "--library-version is ''; expected letters, digits, dots and dashes"),
        ("--allow-privileged=yes", "--allow-privileged is 'yes'; expected true or false"),
        (
            "--runtime-handlers=runc, nvidia",
            "--runtime-handlers is 'runc, nvidia'; expected patterns joined by commas, without spaces",
        ),
    ],
)
def test_value_of_another_form_is_one_sentence(argument: str, words: str) -> None:
    with pytest.raises(BadUsage) as refusal:
        parse_config([argument], {})

    assert str(refusal.value) == words


def test_claims_come_from_the_api_server_under_the_nodes_name() -> None:
    assert parse_config(["--node-name=node-a.example.com"], {}).claims_from == "node-a.example.com"
    assert parse_config([], {"VGPU_NODE_NAME": "node-b"}).claims_from == "node-b"


def test_a_node_without_a_given_name_is_the_host_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-C")

    assert parse_config([], {}).claims_from == "node-c"


@pytest.mark.parametrize("name", ["Node-A", "a/b", "..", "a,spec.driver=x", "a b", "-a", "x" * 254])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(BadUsage, match=r"node name is .*\(--node-name\)"):
        parse_config([f"--node-name={name}"], {})


def test_a_directory_of_claims_needs_no_nodes_name() -> None:
    assert parse_config(["--claims-from=/claims", "--node-name=Not/One"], {}).claims_from == Path("/claims")
