#!/bin/bash
# Puts one Kubernetes release, etcd and CNI plugins, built from their Go modules, into a cache folder.
#
# K8S=1.37 chooses the line of releases; which release of it, its module file here says (module_files.sh writes those).
# Nothing is started or configured. Where the cache is, vgpu_testkit/cluster_programs.py knows too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

# module_file LINE: the default line's has the name that Go itself looks for.
module_file() {
  if grep -q "k8s.io/kubernetes v${1//./\\.}\\." "$here/go.mod"; then echo go.mod; else echo "$1.mod"; fi
}

# required FILE MODULE: the version that a module file asks for.
required() {
  awk -v module="$2" '{ sub(/^require /, ""); if ($1 == module && $2 ~ /^v/) { print $2; exit } }' "$here/$1"
}

# The build's own words are in its log; what it says last is the reason.
build() { # FILE OUTPUT LDFLAGS
  CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=readonly" go build -C "$here" -modfile="$1" -trimpath -ldflags "-s -w $3" \
    -o "$2/" tool >"$log" 2>&1 || fail "go build of $1 fails: $(grep -v '^go: downloading' "$log" | tail -n 1) (all of it is in $log)"
}

line=${K8S:-1.37}
command -v go >/dev/null || fail "go is not on PATH; it builds Kubernetes"
file=$(module_file "$line")
[ -f "$here/$file" ] || fail "there is no module file for Kubernetes $line: ${here##*/}/$file (module_files.sh writes it)"
version=$(required "$file" k8s.io/kubernetes)
cni=$(required cni.mod github.com/containernetworking/plugins)
wanted="Kubernetes $version, etcd $(required "$file" go.etcd.io/etcd/server/v3), CNI plugins $cni, $(go env GOVERSION)"

base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
cache=${base:-/var/cache}/vgpu-cluster
mkdir -p "$cache" 2>/dev/null || fail "cannot make the folder $cache"
# Two runs at once would build the same thing twice, on the same cores.
exec 9>"$cache/.lock"
flock 9

if [ "$(cat "$cache/$version/BUILT" 2>/dev/null)" != "$wanted" ]; then
  work=$cache/.$version.new log=$cache/build-$version.log
  rm -rf "$work"
  mkdir -p "$work/cni"
  # A program that does not know its version names itself v0.0.0-master, and its features with it.
  symbols=
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    minor=${line#*.}
    symbols+=" -X $package.gitVersion=$version -X $package.gitMajor=${line%%.*} -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
  done
  build "$file" "$work" "$symbols"
  mv "$work/server" "$work/etcd"
  build cni.mod "$work/cni" "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$cni"
  echo "$wanted" >"$work/BUILT"
  rm -rf "${cache:?}/$version"
  mv "$work" "$cache/$version"
fi
echo "$wanted in $cache/$version"
