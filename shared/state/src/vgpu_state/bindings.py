"""bytes ↔ Binding: the file binding.json, which says who holds a partition.

Not checksummed and not synced: it is renamed into place whole, and a power cut ends the container that it speaks of.
"""

from __future__ import annotations

import json
from typing import Any

from vgpu_state import ids, jsonshape
from vgpu_state.claims import Binding, HolderState, PodRef
from vgpu_state.errors import VgpuError
from vgpu_state.ids import ContainerName

READER = 2
_ONE_CLAIM = 1  # a container of one claim, whose name is known
_EVERY_HOLDER = 2
MAX_BYTES = 64 << 10


class BindingUnusable(VgpuError):
    """Raised when binding.json cannot be read as a binding: nobody can say whose the partition is."""


def encode_binding(binding: Binding) -> bytes:
    """The file's bytes. Equal bindings give equal bytes."""
    is_plain = binding.home is None and binding.container != ""
    doc = {
        "schema": _ONE_CLAIM if is_plain else _EVERY_HOLDER,
        "pod": {"uid": binding.pod.uid, "namespace": binding.pod.namespace, "name": binding.pod.name},
        "container": binding.container,
        "runtime_id": binding.runtime_id,
        "session": binding.session,
        "cgroup": binding.cgroup,
        "state": binding.state.value,
        "grants": list(binding.grants),
    }
    if binding.home is not None:
        doc["home"] = binding.home
    return json.dumps(doc, indent=2, sort_keys=True).encode()


def decode_binding(raw: bytes) -> Binding:
    """The binding.

    Raises:
        BindingUnusable: not JSON, a field missing or of another type, or a newer schema.
    """
    try:
        return _decode(json.loads(raw))
    except (ValueError, RecursionError, VgpuError) as exc:
        raise BindingUnusable(f"binding.json: {exc}") from exc


def _decode(doc: Any) -> Binding:  # Any: whatever JSON held
    if not isinstance(doc, dict):
        raise jsonshape.ShapeError("the document is no object")
    if jsonshape.whole(doc, "schema") > READER:
        raise jsonshape.ShapeError(f"schema {doc['schema']} is newer than {READER}")
    pod = jsonshape.mapping(doc, "pod")
    container = jsonshape.text(doc, "container")
    return Binding(
        pod=PodRef(
            uid=ids.parse_pod_uid(jsonshape.text(pod, "uid")),
            namespace=jsonshape.text(pod, "namespace"),
            name=jsonshape.text(pod, "name"),
        ),
        container=ids.parse_container_name(container) if container else ContainerName(""),
        runtime_id=ids.parse_runtime_id(jsonshape.text(doc, "runtime_id")),
        session=jsonshape.whole(doc, "session"),
        cgroup=jsonshape.text(doc, "cgroup"),
        state=HolderState(jsonshape.text(doc, "state")),
        grants=tuple(ids.parse_grant_key(k) for k in jsonshape.texts(doc, "grants")),
        home=ids.parse_claim_uid(jsonshape.text(doc, "home")) if "home" in doc else None,
    )
