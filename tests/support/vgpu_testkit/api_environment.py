"""How dra-plugin, outside a cluster, is told of an API server."""

from __future__ import annotations

import json
from pathlib import Path


def cluster_environment(folder: Path, address: str, *, node: str, token: str = "") -> dict[str, str]:
    """The environment of a dra-plugin outside a cluster whose API server is at `address`; its kubeconfig is put into `folder`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": token} if token else {}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(document))
    return {"VGPU_CLAIMS_FROM": "api", "VGPU_NODE_NAME": node, "KUBECONFIG": str(file)}
