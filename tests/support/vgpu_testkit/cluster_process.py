"""One component of a cluster of the tests as a process: started, watched until it is well, ended."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

from vgpu_testkit.cluster_components import Component
from vgpu_testkit.cluster_namespace import Namespace

_HEALTHY_S = 60.0
# kube-apiserver waits a minute for its watchers to go, and they do not.
_END_S = 10.0
_POLL_S = 0.05
_PROBE_S = 2.0


class ClusterFailed(Exception):
    """Raised when a cluster does not do what a test cannot go on without; says what the component wrote last."""


class ClusterProcess:
    """A component inside the cluster's namespaces; its output is appended to its log."""

    def __init__(self, component: Component, *, program: Path, log: Path, namespace: Namespace) -> None:
        self._component = component
        self._program = program
        self._log = log
        self._namespace = namespace
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._running.pid if self._running and self._running.poll() is None else None

    def launch(self) -> None:
        """Starts the process; returns at once."""
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                [*self._namespace.prefix, self._program, *self._component.arguments],
                env={**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_healthy(self) -> None:
        """Returns when the process says that it is well.

        Raises:
            ClusterFailed: it ended, or did not within a minute.
        """
        deadline = time.monotonic() + _HEALTHY_S
        while not self._is_healthy():
            if self.pid is None:
                raise ClusterFailed(f"{self._component.name} ended by itself\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{self._component.name} is not well after {_HEALTHY_S:g} s\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL, and waits for the end; nothing where it does not run."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL where that does not end it within 10 s."""
        self._end(signal.SIGTERM)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of what it wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:]) if self._log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        if self._running is None:
            return
        if self._running.poll() is None:
            self._running.send_signal(number)
        try:
            self._running.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._running = None

    def _is_healthy(self) -> bool:
        component = self._component
        url = f"{component.scheme}://127.0.0.1:{self._namespace.host_port(component.port)}{component.path}"
        # Who answers is not the question: the port is ours.
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_S, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
