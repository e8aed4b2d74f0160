"""What this process counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From the 30 ms that a registration should take to the 12 s for which one is held.
_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 12.0)


class Metrics:
    """The metrics on a registry of their own, so that two instances in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registrations = Counter(
            "vgpu_registrations", "Registrations of containers by verdict", ["verdict"], registry=self.registry
        )
        self.duration_s = Histogram(
            "vgpu_registration_duration_seconds",
            "From the call to its answer",
            ["verdict"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.held = Gauge("vgpu_registrations_held", "Calls that wait for their answer", registry=self.registry)
        self.rereads = Counter(
            "vgpu_pid_rereads", "Re-reads of a container's processes by outcome", ["outcome"], registry=self.registry
        )
        self.lists_cut = Counter(
            "vgpu_pid_lists_cut", "Re-reads that found more processes than the library reads", registry=self.registry
        )
        self.indexed = Gauge("vgpu_registry_indexed_containers", "Runtime ids that the index knows", registry=self.registry)
