"""What nri-plugin tells dra-plugin of its session, where it does not run itself: claims are prepared for NRI all the same.

It speaks only when it is told to, so that what dra-plugin does in between is a test's own doing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_nri.partitions_client import PartitionsClient
from vgpu_nri.session import Session
from vgpu_state.errors import NotReady

# Below those of the calls that tests make as nri-plugin: no binding of theirs is from an earlier session.
_SESSION = 1


class NriCompanion:
    """One session with a runtime that has no containers."""

    def __init__(self, run_dir: Path) -> None:
        self._socket = run_dir / "partitions/claims.sock"
        self._session = Session()
        self._session.register(at_ns=_SESSION)
        self._session.configure(runtime_name="containerd", runtime_version="2.1.9")
        self._session.finish((), at_ns=_SESSION)

    async def live(self) -> None:
        """dra-plugin knows that the session lives, for the next five seconds; one that is away does not."""
        async with PeerSocket(str(self._socket), peer="dra-plugin", clock=time.monotonic) as peer:
            client = PartitionsClient(peer)
            with suppress(NotReady):  # it is away: whoever calls it next finds out
                if not await client.renew(self._session):
                    await client.synchronize((), session_id=self._session.id)
