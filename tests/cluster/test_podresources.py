"""A real kubelet says of its pods' containers what their grants say, in the form in which the stand-in says it."""

from __future__ import annotations

import asyncio
import time

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_dra.pod_resources_client import SOCKET, PodResourcesClient
from vgpu_dra.policy.listing import ListedDevice, Listing
from vgpu_state.claims import PodRef
from vgpu_state.ids import PodUid
from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu_pods import SCRIPT, STAY, Box, Namespace, claim_spec, pod, request

_COUNTER = "vgpu_dra_kubelet_confirmations_total"


def test_kubelet_confirms_every_container_that_it_lists(namespace: Namespace) -> None:
    before = _outcomes(namespace)
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30"), request("side", memory="1Gi", cores="10")))
    document = pod(used, Box(uses=("gpu",), script=STAY), Box(name="plain", uses=("gpu",)))
    del document["spec"]["containers"][1]["resources"]
    document["spec"]["containers"][1]["command"] = ["/bin/sh", "-c", "exec sleep 100000"]
    warm = Box(name="warm", uses=("gpu",), script=SCRIPT + "true").document()
    side = Box(name="side", uses=("side",)).document() | {"restartPolicy": "Always"}
    document["spec"]["initContainers"] = [warm, side]

    name = namespace.run(document)

    after = _outcomes(namespace)
    assert {word: count - before.get(word, 0) for word, count in after.items()} == {"confirmed": 2, "unlisted": 1}
    claim = namespace.claim_of(name)
    whole = frozenset(_listed(claim, result) for result in claim["status"]["allocation"]["devices"]["results"])
    assert len(whole) == 2
    assert _listing(namespace, name) == Listing(containers={"side": whole, "main": whole, "plain": frozenset()})


def test_kubelet_confirms_both_pods_of_a_shared_claim(namespace: Namespace) -> None:
    before = _outcomes(namespace)
    used = namespace.claim(claim_spec(request("one", memory="1Gi", cores="10"), request("two", memory="2Gi", cores="20")))

    namespace.run(pod(used, Box(uses=("one",))))
    namespace.run(pod(used, Box(uses=("two",))))

    assert {w: n - before.get(w, 0) for w, n in _outcomes(namespace).items() if n != before.get(w)} == {"confirmed": 2}


def _outcomes(namespace: Namespace) -> dict[str, float]:
    samples = asyncio.run(namespace.vgpu.stack.dra.metrics())
    rows = ((name.removeprefix(f'{_COUNTER}{{outcome="').removesuffix('"}'), value) for name, value in samples.items())
    return {word: value for word, value in rows if f'{_COUNTER}{{outcome="{word}"}}' in samples}


def _listed(claim: Object, result: Object) -> ListedDevice:
    return ListedDevice(
        claim_namespace="default",
        claim_name=claim["metadata"]["name"],
        driver="manager.nvidia.com",
        pool=result["pool"],
        device=result["device"],
        share_id=result["shareID"],
    )


def _listing(namespace: Namespace, name: str) -> object:
    async def ask() -> object:
        socket = namespace.vgpu.cluster.kubelet_root / SOCKET
        async with PeerSocket(str(socket), peer="kubelet", clock=time.monotonic) as peer:
            client = PodResourcesClient(peer, clock=time.monotonic, answer_s=5.0)
            return await client.get(PodRef(uid=PodUid(""), namespace="default", name=name))

    return asyncio.run(ask())
