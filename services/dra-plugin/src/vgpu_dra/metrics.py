"""What dra-plugin counts. One registry per process, made in `app`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vgpu_dra.ledger import Ledger
from vgpu_state.claims import EagerReason
from vgpu_state.errors import VgpuError

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 45)


class Metrics:
    """Counters and durations of the operations; `registry` is what /metrics shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.operations = Histogram(
            "vgpu_dra_operation_seconds",
            "Duration of each operation by outcome: ok, or the class of the refusal",
            ("operation", "outcome"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.drifted = Counter(
            "vgpu_dra_drifted_containers",
            "Containers whose limits differ from their grants, at Synchronize",
            registry=self.registry,
        )
        self.unbound = Counter(
            "vgpu_dra_unbound_containers", "Live vGPU containers without a partition, at Synchronize", registry=self.registry
        )
        self.events = Counter(
            "vgpu_dra_events",
            "What a user should see: claim_quarantined, unprepare_forced, vanished_claim_removed, <operation>_refused",
            ("reason",),
            registry=self.registry,
        )
        self.confirmations = Counter(
            "vgpu_dra_kubelet_confirmations",
            "Containers whose grants kubelet was asked about: confirmed, refused, or why only the grant decided",
            ("outcome",),
            registry=self.registry,
        )
        self.kubernetes_events = Counter(
            "vgpu_dra_kubernetes_events",
            "Writes of Events: written; and what was not: full (too many at once), late (API server away), refused",
            ("outcome",),
            registry=self.registry,
        )
        self.slice_writes = Counter(
            "vgpu_dra_slice_writes", "Writes of ResourceSlices: create, replace, delete", ("verb",), registry=self.registry
        )
        self.slice_failures = Counter(
            "vgpu_dra_slice_failures",
            "Publications that failed: away, refused; and dropped, where the API server stored other fields than were written",
            ("reason",),
            registry=self.registry,
        )
        self.gpu_looks = Counter("vgpu_dra_gpu_looks", "Looks at the GPUs that NVML answered", registry=self.registry)
        self.health_events = Counter(
            "vgpu_dra_health_events",
            "What NVML told of by itself: xid_critical, xid_benign, xid_disabled, ecc_uncorrected, ecc_corrected",
            ("kind",),
            registry=self.registry,
        )
        self.health_file_failures = Counter(
            "vgpu_dra_health_file_failures",
            "Times that the health of the GPUs could not be read at the start or written",
            registry=self.registry,
        )
        self.tainted_gpus = Gauge(
            "vgpu_dra_tainted_gpus", "GPUs whose devices carry a taint, by its key", ("key",), registry=self.registry
        )
        self.published_devices = Gauge(
            "vgpu_dra_published_devices", "Devices in the ResourceSlices of this node", registry=self.registry
        )

        self.feature_gates = Gauge(
            "vgpu_dra_feature_gate", "1 where the feature gate is on, 0 where it is off", ("gate",), registry=self.registry
        )

    def show_gates(self, states: Mapping[str, bool]) -> None:
        """Shows each feature gate, which stays as it is for the life of the process."""
        for gate, is_on in states.items():
            self.feature_gates.labels(gate).set(is_on)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A number that is asked for when it is scraped."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def watch(self, ledger: Ledger) -> None:
        """Shows how many claims and partitions there are, whenever it is scraped."""
        self.gauge("vgpu_dra_prepared_claims", "Claims with a record", lambda: len(ledger.records))
        eager = Gauge(
            "vgpu_dra_eager_claims",
            "Claims whose partitions were made at Prepare, by the reason",
            ("reason",),
            registry=self.registry,
        )
        for reason in EagerReason:
            eager.labels(reason).set_function(partial(_eager_claims, ledger, reason))
        self.gauge("vgpu_dra_quarantined_claims", "Claims whose record cannot be used", lambda: len(ledger.quarantined))
        self.gauge("vgpu_dra_bindings", "Partitions that a container holds", lambda: len(ledger.all_bindings()))
        self.gauge("vgpu_dra_partition_conflicts", "Grants that two containers hold at a time: a fault of ours", ledger.conflicts)

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Observes how long the block takes and how it ends."""
        started = time.monotonic()
        outcome = "ok"
        try:
            yield
        except VgpuError as exc:
            outcome = type(exc).__name__
            raise
        except BaseException:
            outcome = "fault"
            raise
        finally:
            self.operations.labels(operation, outcome).observe(time.monotonic() - started)


def _eager_claims(ledger: Ledger, reason: EagerReason) -> int:
    # A copy: worker threads change it while this is read.
    return sum(1 for r in list(ledger.records.values()) if r.eager is not None and r.eager.reason is reason)
