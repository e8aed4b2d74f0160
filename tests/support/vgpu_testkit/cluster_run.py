"""A cluster to work with: `python -m vgpu_testkit.cluster_run [RELEASE]` starts one and stops it at Ctrl-C or SIGTERM."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_process import ClusterFailed
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE
from vgpu_testkit.containerd import find_containerds


def main() -> int:
    containerd = find_containerds().get("2")
    if containerd is None:
        print("containerd 2 is not installed: run make containerd", file=sys.stderr)
        return 1
    # A socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="vk"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster = Cluster(root, containerd=containerd, release=sys.argv[1] if len(sys.argv) > 1 else DEFAULT_RELEASE)
        try:
            began = time.monotonic()
            cluster.start()
            print(f"Kubernetes {cluster.version} is up after {time.monotonic() - began:.1f} s; everything it writes is in {root}")
            print(f"export KUBECONFIG={cluster.admin_kubeconfig}")
            print(f"in the node's network and mounts: {' '.join(cluster.command_prefix)} COMMAND", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")
        finally:
            cluster.stop()
    except ClusterFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
