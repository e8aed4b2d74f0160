"""Pods that come and go on a real cluster with vGPUs, and what becomes of each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu_pods import END, Box, Namespace, claim_spec, pod, request
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

Kind = Literal["running", "failed", "stuck"]

# A container that could not start is tried again after 10, 20, 40 s.
_SETTLED_S = 200.0
_POLL_S = 0.5

# What each kind of pod is given.
_SHARES = (Slice(memory_bytes=8 * GIB, cores_percent=30), Slice(memory_bytes=4 * GIB, cores_percent=10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a pod: it runs or has run, it failed and an event or its program says why, or neither."""

    name: str
    kind: Kind
    story: str


@dataclass(kw_only=True)
class _Asked:
    share: Slice
    ends: bool


class Burst:
    """The pods of one round. Of each three, one ends by itself; of each two, one is not restarted."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._templates = [namespace.template(claim_spec(_request(share))) for share in _SHARES]
        self._pods: dict[str, _Asked] = {}
        self._made = 0
        self.settled_s = 0
        """How long after the last was created the last was settled, in seconds."""

    def create(self, count: int) -> None:
        """Creates so many more."""
        for _ in range(count):
            kind, ends = self._made % 2, self._made % 3 == 2
            restart = "Never" if ends or self._made % 4 < 2 else "Always"
            box = Box(script=END) if ends else Box()
            name = self._namespace.create(pod(self._templates[kind], box, restart=restart))
            self._pods[name] = _Asked(share=_SHARES[kind], ends=ends)
            self._made += 1

    def delete(self, count: int, *, grace_s: int) -> None:
        """Deletes the oldest that would stay; without grace they vanish before kubelet knows, as by `kubectl delete --force`."""
        for name in [name for name, asked in self._pods.items() if not asked.ends][:count]:
            self._namespace.delete(name, grace_s=grace_s)
            del self._pods[name]

    def fates(self) -> list[Fate]:
        """What became of the pods that were not deleted, once all are settled or some minutes have passed."""
        began = time.monotonic()
        while True:
            kinds = self._kinds()
            self.settled_s = round(time.monotonic() - began)
            if "stuck" not in kinds.values() or self.settled_s > _SETTLED_S:
                return [Fate(name=name, kind=kind, story=self._story(name, kind)) for name, kind in kinds.items()]
            time.sleep(_POLL_S)

    def wrong_limits(self) -> list[str]:
        """The pods that run or have run and read anything but what they had asked for."""
        wrong = []
        for name, kind in self._kinds().items():
            if kind == "running":
                asked, seen = self._pods[name].share, list(self._namespace.slices(name).values())
                if seen != [asked]:
                    wrong.append(f"{name} asked for {asked} and read {seen}")
        return wrong

    def _kinds(self) -> dict[str, Kind]:
        """What each is at this moment, by one look at all of them."""
        found = self._namespace.pods()
        return {name: self._kind(name, found[name]["status"]) for name in self._pods}

    def _kind(self, name: str, status: Object) -> Kind:
        states = [one["state"] for one in status.get("containerStatuses") or [{"state": {}}]]
        if status["phase"] == "Succeeded" or (status["phase"] == "Running" and all("running" in state for state in states)):
            return "running"
        # What keeps trying is waited for; a pod has failed for good where it is not restarted.
        return "failed" if status["phase"] == "Failed" and _is_told(self._namespace.story(name)) else "stuck"

    def _story(self, name: str, kind: Kind) -> str:
        return "" if kind == "running" else "\n".join(self._namespace.story(name))


def _is_told(story: list[str]) -> bool:
    """Whether an event, or the program itself, says why the pod failed."""
    return any(" Failed: " in line for line in story) or "device-client: " in story[-1]


def _request(share: Slice) -> Object:
    assert share.memory_bytes is not None
    return request("gpu", memory=f"{share.memory_bytes // GIB}Gi", cores=str(share.cores_percent))
