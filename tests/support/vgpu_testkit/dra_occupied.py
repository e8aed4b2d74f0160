"""A node on which claims are free, held, left and lost: what calls of other containers are refused against."""

from __future__ import annotations

from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu, kubelet_claim
from vgpu_testkit.dra_calls import STOPPED

FREE = half_a_gpu("free", device="vgpu-1", uid="11111111-8f0a-4f57-9d0e-6a6d1b2c7e10")
HELD = half_a_gpu("held", device="vgpu-2", uid="22222222-8f0a-4f57-9d0e-6a6d1b2c7e10")
LEFT = half_a_gpu("left", device="vgpu-3", uid="33333333-8f0a-4f57-9d0e-6a6d1b2c7e10")
LOST = half_a_gpu("lost", device="vgpu-4", uid="44444444-8f0a-4f57-9d0e-6a6d1b2c7e10")

NEW = Container()
HOLDER = Container(name="holder", pid=4_000_001)
STOPPED_ONE = Container(name="stopped", pid=4_000_002)
DEAD = Container(name="dead", pid=4_000_003)


async def occupy(bench: DraBench) -> None:
    """HOLDER runs on HELD, STOPPED_ONE was stopped on LEFT, DEAD died unseen on LOST; their session has not synchronized."""
    claims = (FREE, HELD, LEFT, LOST)
    for claim in claims:
        claim.write(bench.claims)
    answers = await bench.answers(*map(kubelet_claim, claims))
    assert [answer.error for answer in answers.values()] == ["", "", "", ""]
    for claim, container in ((HELD, HOLDER), (LEFT, STOPPED_ONE), (LOST, DEAD)):
        await bench.ensure(claim, container)
        bench.run(container)
        await bench.record_start(container)
    await bench.calls.release(STOPPED_ONE.runtime_id, STOPPED)
    bench.end(DEAD)
