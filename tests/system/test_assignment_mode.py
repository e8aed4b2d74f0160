"""By NRI or at Prepare: what a claim gets where nri-plugin is late, and where it is not wanted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from vgpu_testkit.dra_bench import DraBench, half_a_gpu, kubelet_claim
from vgpu_testkit.manifests import Manifest, whole

SHARE = half_a_gpu(device="vgpu-5")
WHOLE = Manifest(name="whole", uid="3f0c1f6e-8f0a-4f57-9d0e-000000000002", shares=(whole("gpu", "gpu-2"),))

POD_UID = "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker", "namespace": "research", "uid": POD_UID},
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "half"}],
        "containers": [{"name": "train", "resources": {"claims": [{"name": "gpu"}]}}],
    },
}
RESERVED: dict[str, Any] = SHARE.document()
RESERVED["status"]["reservedFor"] = [{"resource": "pods", "name": "worker", "uid": POD_UID}]


async def test_a_share_waits_for_nri_plugin_after_a_start_and_nothing_else_does(bench: DraBench) -> None:
    for manifest in (SHARE, WHOLE):
        manifest.write(bench.claims)
    await bench.start()
    async with asyncio.TaskGroup() as preparing:
        share = preparing.create_task(bench.answers_without_nri(kubelet_claim(SHARE)))

        answers = await bench.answers_without_nri(kubelet_claim(WHOLE))
        assert [answer.error for answer in answers.values()] == [""]
        assert await bench.unprepare_answers(kubelet_claim(WHOLE)) == {WHOLE.uid: ""}
        assert (await bench.dra.debug("state"))["is_nri_alive"] is False
        assert not share.done()

        await bench.nri.live()

    assert [answer.error for answer in share.result().values()] == [""]
    assert (await bench.dra.debug("claims"))[SHARE.uid]["mode"] == "lazy"
    assert (await bench.dra.debug("state"))["is_nri_alive"] is True


async def test_without_nri_support_a_share_is_prepared_without_it_though_nri_plugin_lives(bench: DraBench) -> None:
    (bench.claims / "pod.json").write_text(json.dumps(POD))
    (bench.claims / "claim.json").write_text(json.dumps(RESERVED))
    bench.dra.environment["VGPU_FEATURE_GATES"] = "NRISupport=false"
    await bench.start()

    await bench.prepare(SHARE)

    shown = (await bench.dra.debug("claims"))[SHARE.uid]
    assert (shown["mode"], shown["eager_reason"]) == ("eager", "nri_disabled")
    assert (await bench.dra.debug("state"))["is_nri_alive"] is True
    assert (await bench.dra.metrics())['vgpu_dra_eager_claims{reason="nri_disabled"}'] == 1
