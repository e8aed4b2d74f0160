#!/bin/bash
# Sees to it that manifests can be rendered: by kubectl or kustomize where PATH has one, else by a kustomize of our own, built by
# Go into a cache folder. Where that folder is, tests/architecture/test_render.py knows too.
set -euo pipefail

# The newest that Go 1.24 can build; later ones ask for the newest Go.
version=v5.8.1

fail() {
  echo "install_kustomize.sh: $*" >&2
  exit 1
}

for program in kubectl kustomize; do
  if command -v "$program" >/dev/null; then
    echo "manifests are rendered by $(command -v "$program")"
    exit 0
  fi
done

base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
folder=${base:-/var/cache}/vgpu-tools
if [ ! -x "$folder/kustomize" ]; then
  command -v go >/dev/null || fail "neither kubectl nor kustomize nor go is on PATH: install one of them"
  mkdir -p "$folder" 2>/dev/null || fail "cannot make the folder $folder"
  output=$(GOBIN=$folder go install "sigs.k8s.io/kustomize/kustomize/v5@$version" 2>&1) ||
    fail "go cannot build kustomize $version: $(tail -n 1 <<<"$output")"
fi
echo "manifests are rendered by $folder/kustomize"
