#!/bin/bash
# Puts containerd 1.7 and 2.x, side by side, into a cache folder, and runc and busybox-static on the host.
#
# Nothing is started or configured. Debian 12 has neither containerd with NRI, so the packages come from later
# suites of the archive that the host itself uses, through a private view of apt that leaves the host's sources and
# pins alone. They need only libc6 >= 2.34 and runc, both of which Debian 12 has; a later suite's runc would need a
# later libc. Where the cache is, vgpu_testkit/containerd.py knows too.
set -euo pipefail

# The line of releases, and the suite of the archive that has it.
declare -A suites=([1.7]=trixie [2]=forky)

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

cache_folder() {
  local base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
  echo "${base:-/var/cache}/vgpu-containerd"
}

# version_of CONTAINERD: its number, as 1.7.24; nothing where the program does not run.
version_of() {
  "$1" --version 2>/dev/null | sed -n 's/^[^0-9]*[^ ]* v\{0,1\}\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/p'
}

is_wanted() { # LINE VERSION
  case $1:$2 in
    1.7:1.7.* | 2:2.*) return 0 ;;
    *) return 1 ;;
  esac
}

is_installed() { # LINE
  local program=$cache/$1/usr/bin/containerd
  [ -x "$program" ] && is_wanted "$1" "$(version_of "$program")"
}

# The address of the archive that the host's own sources name for its own suite. apt reads its sources for us, in the
# old format and in the new one; it knows them only once it has its lists.
archive() {
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v suite="$VERSION_CODENAME" '$2 == suite && $3 == "main" { print $1; exit }'
}

# quietly WHAT COMMAND...: apt's first complaint is the reason when it fails.
quietly() {
  local what=$1 output
  shift
  output=$("$@" 2>&1) || fail "$what: $(grep -m 1 '^[EW]:' <<<"$output" || tail -n 1 <<<"$output")"
}

fetch=(-o Acquire::Retries=2 -o Acquire::http::Timeout=30)

# A container image usually comes with its lists emptied, and old lists name files that are gone. An unrelated source
# that cannot be read is not our concern: whether what we need was found is seen afterwards.
update_lists() {
  local output
  output=$(apt-get "${fetch[@]}" update -qq 2>&1) || true
  [ -n "$(archive)" ] ||
    fail "apt has no list of $VERSION_CODENAME main: $(grep -m 1 '^[EW]:' <<<"$output" || echo "no source in /etc/apt names it")"
}

install_distribution_packages() {
  local missing=() package
  for package in runc busybox-static; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get "${fetch[@]}" install -y -qq --no-install-recommends)
  if ! "${install[@]}" "${missing[@]}" >/dev/null 2>&1; then
    update_lists
    quietly "cannot install ${missing[*]}" "${install[@]}" "${missing[@]}"
  fi
}

install_containerd() { # LINE
  local line=$1 suite=${suites[$1]} uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -n "$(archive)" ] || update_lists
  uri=$(archive)
  [ -r "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"

  local work=$cache/.$line.$$
  # shellcheck disable=SC2064  # the folder of this call, as it is now
  trap "rm -rf '$work'" EXIT
  mkdir -p "$work"/{lists/partial,archives/partial,deb,tree}
  echo "deb [signed-by=$keyring] $uri $suite main" >"$work/sources.list"
  local private=("${fetch[@]}" -o APT::Update::Error-Mode=any -o APT::Sandbox::User=root -o Acquire::Languages=none
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work")
  quietly "cannot read the package list of $suite" apt-get "${private[@]}" update -qq
  cd "$work/deb"
  quietly "cannot fetch containerd of $suite" apt-get "${private[@]}" download -qq "containerd/$suite"
  cd - >/dev/null
  quietly "cannot unpack containerd of $suite" dpkg -x "$work"/deb/containerd_*.deb "$work/tree"

  local found
  found=$(version_of "$work/tree/usr/bin/containerd")
  [ -n "$found" ] || fail "containerd of $suite does not run on this system: $("$work/tree/usr/bin/containerd" --version 2>&1 | tail -n 1)"
  is_wanted "$line" "$found" || fail "$suite has containerd $found where $line was expected"
  rm -rf "${cache:?}/$line"
  mv "$work/tree" "$cache/$line"
  rm -rf "$work"
  trap - EXIT
}

[ "$(id -u)" -eq 0 ] || fail "only root can install packages and run containerd; run it as root"
[ -r /etc/os-release ] || fail "this is made for Debian 12, and this system has no /etc/os-release"
. /etc/os-release
[ "${ID:-}" = debian ] || fail "this is made for Debian 12, and this is ${PRETTY_NAME:-an unknown system}"
case ${VERSION_ID:-} in
  12 | 13) ;;
  *) fail "this is made for Debian 12, and this is ${PRETTY_NAME:-Debian of an unknown version}" ;;
esac

cache=$(cache_folder)
mkdir -p "$cache" 2>/dev/null || fail "cannot make the folder $cache"
# Two runs at once would unpack over each other.
exec 9>"$cache/.lock"
flock 9

install_distribution_packages
for line in 1.7 2; do
  is_installed "$line" || install_containerd "$line"
  echo "containerd $(version_of "$cache/$line/usr/bin/containerd") in $cache/$line"
done
