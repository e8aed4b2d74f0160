"""kubelet's memory of claims: devices, which it checkpoints, and prepared flags, which it does not.

Source: kubelet pkg/kubelet/cm/dra/manager.go and claiminfo.go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vgpu_testkit.kubelet_values import Claim, Device, KubeletRefusal


class ClaimCache:
    """What is known of claims on this node, by driver and claim uid."""

    def __init__(self) -> None:
        self._uids: dict[tuple[str, str], str] = {}
        self._devices: dict[str, dict[str, tuple[Device, ...]]] = {}
        self._prepared: set[tuple[str, str]] = set()

    def note(self, claims: Collection[Claim]) -> None:
        """Notes the claims before anything is asked of a plugin.

        Raises:
            KubeletRefusal: a claim of the same name and another uid is still on the node.
        """
        for claim in claims:
            known = self._uids.get((claim.namespace, claim.name), claim.uid)
            if known != claim.uid:
                raise KubeletRefusal(f"old ResourceClaim with same name {claim.name} and different UID {known} still exists")
        self._uids |= {(claim.namespace, claim.name): claim.uid for claim in claims}

    def unprepared(self, driver: str, claims: Collection[Claim]) -> tuple[Claim, ...]:
        return tuple(claim for claim in claims if (driver, claim.uid) not in self._prepared)

    def record_prepared(self, driver: str, devices: Mapping[str, tuple[Device, ...]]) -> None:
        for uid, of_claim in devices.items():
            self._devices.setdefault(uid, {})[driver] = of_claim
            self._prepared.add((driver, uid))

    def devices(self, driver: str, uid: str) -> list[Device]:
        return list(self._devices[uid][driver])

    def devices_by_driver(self, namespace: str, name: str) -> Mapping[str, tuple[Device, ...]] | None:
        """What each driver has prepared of a claim; None where none is known of that name."""
        return self._devices.get(self._uids.get((namespace, name), ""))

    def forget_prepared_flags(self) -> None:
        """What a kubelet restart loses: devices survive in dra_manager_state, the flags are in memory only."""
        self._prepared.clear()

    def drop(self, driver: str, claims: Collection[Claim]) -> None:
        for claim in claims:
            self._prepared.discard((driver, claim.uid))
            of_drivers = self._devices.pop(claim.uid, {})
            of_drivers.pop(driver, None)
            if of_drivers:
                self._devices[claim.uid] = of_drivers
                continue
            self._uids.pop((claim.namespace, claim.name), None)

    def cdi_device_ids(self, uid: str, requests: Collection[str] | None) -> list[str]:
        """The ids in kubelet's order, repeated when two of the requests lead to the same device.

        Raises:
            KubeletRefusal: no driver has prepared the claim.
        """
        if uid not in self._devices:
            raise KubeletRefusal(f"unable to get claim info for claim {uid}: it is not prepared")
        devices = [device for of_driver in self._devices[uid].values() for device in of_driver]
        if requests is None:
            return [cdi_id for device in devices for cdi_id in device.cdi_device_ids]
        return [
            cdi_id
            for request in requests
            for device in devices
            if not device.request_names or request in device.request_names
            for cdi_id in device.cdi_device_ids
        ]
