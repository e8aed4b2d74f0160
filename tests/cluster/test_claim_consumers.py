"""The pods of a claim as a real API server has them, looked up with the services' own account."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from vgpu_dra.claim_consumers import ClaimConsumers
from vgpu_dra.effects import kube_api
from vgpu_dra.effects.api_pods import ApiPods
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.pod_claims import ConsumerPod
from vgpu_state import ids
from vgpu_state.claims import ClaimRef
from vgpu_testkit import api_pod_rules
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import ApiError, Object
from vgpu_testkit.cluster_pods import PODS
from vgpu_testkit.cluster_vgpu import RESOURCES, wait_until
from vgpu_testkit.cluster_vgpu_pods import CLAIMS, Box, Namespace, claim_spec, pod, request

_CLASSES = f"{RESOURCES}/deviceclasses"
_BASE = Path(__file__).parents[2] / "deploy/kustomize/base"
_SLEEP = "exec sleep 100000"
_TWO = claim_spec(request("a", memory="8Gi", cores="30"), request("b", memory="8Gi", cores="30"))


def test_consumers_of_a_claim_from_a_template_are_told_apart(namespace: Namespace) -> None:
    warm, watch = Box(name="warm", uses=("a",), script="true"), Box(name="watch", uses=("b",), script=_SLEEP)
    document = pod(namespace.template(_TWO), Box(name="train", uses=("a",), script=_SLEEP), init=(warm, watch))
    document["spec"]["initContainers"][1]["restartPolicy"] = "Always"

    name = namespace.run(document)

    (found,) = _consumers(namespace, namespace.claim_of(name))
    assert found.pod.name == name
    assert [(c.name, str(c.kind), c.position, c.references) for c in found.containers] == [
        ("warm", "init", 0, ("a",)),
        ("watch", "sidecar", 1, ("b",)),
        ("train", "app", 0, ("a",)),
    ]


def test_pod_that_is_gone_or_has_ended_is_no_consumer(namespace: Namespace) -> None:
    used = namespace.claim(_TWO)
    staying = namespace.run(pod(used, Box(uses=("a",), script=_SLEEP)))
    going = namespace.run(pod(used, Box(uses=("b",), script=_SLEEP)))
    claim = namespace.vgpu.cluster.api.get(f"{CLAIMS}/{used['resourceClaimName']}")
    assert {p.pod.name for p in _consumers(namespace, claim)} == {staying, going}

    namespace.delete(going, grace_s=0)

    wait_until(lambda: going not in namespace.pods(), "the pod is gone")
    assert [p.pod.name for p in _consumers(namespace, claim)] == [staying]


def test_consumers_of_extended_resources_are_those_of_the_status(namespace: Namespace) -> None:
    api = namespace.vgpu.cluster.api
    classes = yaml.safe_load_all((_BASE / "deviceclasses.yaml").read_text())
    (share,) = [one["spec"] for one in classes if one["metadata"]["name"] == "vgpu-manager"]
    api.create(_CLASSES, {"metadata": {"name": "named-vgpu"}, "spec": share | {"extendedResourceName": "example.com/vgpu"}})
    try:
        document = pod({}, Box(name="train", script=_SLEEP), Box(name="log", script=_SLEEP))
        del document["spec"]["resourceClaims"]
        document["spec"]["containers"][0]["resources"] = {"limits": {"example.com/vgpu": "1"}}
        document["spec"]["containers"][1]["resources"] = {}

        name = namespace.run(document)

        (claim,) = api.get(CLAIMS)["items"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        (found,) = _consumers(namespace, claim)
        assert found.pod.name == name
        assert [(c.name, c.references) for c in found.containers] == [("train", (result["request"],))]
    finally:
        api.delete(f"{_CLASSES}/named-vgpu")


def _consumers(namespace: Namespace, claim: Object) -> tuple[ConsumerPod, ...]:
    """With the kubeconfig of dra-plugin, so that what its role does not allow fails here."""
    kubeconfig = Path(namespace.vgpu.stack.dra.environment["KUBECONFIG"])
    about = claim["metadata"]
    ref = ClaimRef(namespace=about["namespace"], name=about["name"], uid=ids.parse_claim_uid(about["uid"]))

    async def read() -> tuple[ConsumerPod, ...]:
        api = KubeApi(partial(kube_api.connect, kubeconfig))
        try:
            return await ClaimConsumers(ApiPods(api)).pods_of(claim, ref)
        finally:
            await api.close()

    return asyncio.run(read())


def _pod(change: Callable[[Any], Any] = lambda _: None) -> Object:
    """A legal pod whose spec is another in something."""
    document = pod({"resourceClaimName": "some"}, Box(uses=("a", "b")), init=(Box(name="warm"),))
    change(document["spec"])
    return copy.deepcopy(document)


def _claims(spec: Any) -> Any:
    return spec["containers"][0]["resources"]["claims"]


_LEGAL: dict[str, Object] = {
    "a pod": _pod(),
    "one claim by two names": _pod(lambda s: s["resourceClaims"].append({"name": "again", "resourceClaimName": "some"})),
    "a template": _pod(lambda s: s.update(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])),
}
_ILLEGAL: dict[str, Object] = {
    "an unknown claim": _pod(lambda s: s.update(resourceClaims=[{"name": "nic", "resourceClaimName": "some"}])),
    "neither claim nor template": _pod(lambda s: s.update(resourceClaims=[{"name": "gpu"}])),
    "both claim and template": _pod(lambda s: s["resourceClaims"][0].update(resourceClaimTemplateName="t")),
    "two entries of one name": _pod(lambda s: s["resourceClaims"].append({"name": "gpu", "resourceClaimName": "other"})),
    "an entry's name": _pod(lambda s: s["resourceClaims"].append({"name": "a.b", "resourceClaimName": "other"})),
    "one request twice": _pod(lambda s: _claims(s).append({"name": "gpu", "request": "a"})),
    "requests before the whole claim": _pod(lambda s: _claims(s).append({"name": "gpu"})),
    "the whole claim before a request": _pod(lambda s: _claims(s).insert(0, {"name": "gpu"})),
    "a sub-request": _pod(lambda s: _claims(s).append({"name": "gpu", "request": "a/small"})),
    "two containers of one name": _pod(lambda s: s["initContainers"][0].update(name="main")),
    "no container": _pod(lambda s: s.update(containers=[])),
}


def test_the_stand_in_has_no_pod_that_a_real_api_server_refuses(cluster: Cluster) -> None:
    cases = _LEGAL | _ILLEGAL
    stored = {"namespace": "default", "uid": "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"}

    real = [name for name, document in cases.items() if _is_refused(cluster, document)]
    stand_in = [name for name, one in cases.items() if api_pod_rules.refusals({**one, "metadata": {**one["metadata"], **stored}})]

    assert real == list(_ILLEGAL)
    assert stand_in == list(_ILLEGAL)


def _is_refused(cluster: Cluster, document: Object) -> bool:
    try:
        cluster.api.create(f"{PODS}?dryRun=All", document)
    except ApiError as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        return True
    return False
