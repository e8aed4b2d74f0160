#!/bin/bash
# Writes the module files that build.sh builds from: module_files.sh 1.36, 1.37, cni, or several of them.
#
# Each line gets the newest patch that the module proxy serves. Kubernetes' own module takes its staging modules from
# folders of its source tree, which a module that requires it cannot; each has a release of its own to take instead.
# Kubernetes' go.mod says which they are, and which etcd the release is tested with.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# The line that go.mod itself is for; each other line's file has the line's name.
default=1.37

# newest MODULE PREFIX: the newest release, no pre-release, whose version starts so.
newest() {
  go list -m -versions "$1" | tr ' ' '\n' | grep -E "^${2//./\\.}[0-9.]*\$" | sort -V | tail -n 1
}

write() { # NAME: go.mod's text on standard input
  local work
  work=$(mktemp -d)
  cat >"$work/go.mod"
  (cd "$work" && go mod tidy)
  mv "$work/go.mod" "$here/$1.mod"
  mv "$work/go.sum" "$here/$1.sum"
  rm -rf "$work"
}

kubernetes() { # LINE
  local version own
  version=$(newest k8s.io/kubernetes "v$1.")
  [ -n "$version" ] || { echo "module_files.sh: the module proxy has no release of Kubernetes $1" >&2; exit 1; }
  own=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
  cat <<MOD
module cluster

$(grep -E '^go [0-9]' "$own")

$(grep -E '^godebug ' "$own")

tool (
$(printf '\tk8s.io/kubernetes/cmd/%s\n' kube-apiserver kube-controller-manager kube-scheduler kubelet)
	go.etcd.io/etcd/server/v3
)

require k8s.io/kubernetes $version

replace (
$(sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|\t\1 => \1 v0${version#v1}|p" "$own")
)
MOD
}

# Not v1.10: it wants a patch of Go newer than Kubernetes itself does.
cni() {
  cat <<MOD
module cni

go 1.24.2

tool (
$(printf '\tgithub.com/containernetworking/plugins/plugins/%s\n' main/bridge main/loopback ipam/host-local)
)

require github.com/containernetworking/plugins $(newest github.com/containernetworking/plugins v1.9.)
MOD
}

[ $# -gt 0 ] || { echo "module_files.sh: say which: 1.36, 1.37 or cni" >&2; exit 1; }
for one; do
  case $one in
    cni) cni | write cni ;;
    "$default") kubernetes "$one" | write go ;;
    *) kubernetes "$one" | write "$one" ;;
  esac
done
