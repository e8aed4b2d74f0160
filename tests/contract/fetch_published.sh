#!/usr/bin/env bash
# The published interface definitions, from their Go modules, into a cache folder outside the tree. Needs Go.
set -euo pipefail
if ! command -v go >/dev/null; then
  echo "fetch_published.sh: go is not on PATH; it fetches the modules that hold the published .proto files" >&2
  exit 1
fi
cache="${XDG_CACHE_HOME:-${HOME:-/var}/.cache}/vgpu-published"
mkdir -p "$cache/work"
cd "$cache/work"
export GOMODCACHE="$cache/mod" GOFLAGS=-mod=mod
for module in k8s.io/kubelet@v0.36.0 k8s.io/cri-api@v0.36.0 github.com/containerd/nri@v0.12.0; do
  [ -d "$GOMODCACHE/$module" ] || go mod download "$module"
done
