# shellcheck shell=bash
# ./dev fresh: the README's commands in a newly installed Debian. Sourced by dev.

proved_nothing=75  # the status of a check that did not run because the mirror does not answer

# The Debian mirror of this machine's apt; empty if it has none: debootstrap then takes its default.
debian_mirror() {
  local ID='' VERSION_CODENAME=''
  # shellcheck source=/dev/null
  [[ -e /etc/os-release ]] && . /etc/os-release
  [[ $ID == debian ]] || return 0
  apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' |
    awk -v release="$VERSION_CODENAME" '$1 == release && $2 == "main" { print $3; exit }'
}

# isolated COMMAND...: runs it with its own mounts and processes, which always end with it.
isolated() {
  unshare --mount --pid --fork --kill-child "$@" &
  child=$!
  wait "$child"
}

# bare_root DIR RELEASE LOG: makes a minimal Debian with git, with the mirror of this machine's apt.
bare_root() {
  local dir=$1 release=$2 log=$3 mirror proxy
  mirror=${GRADUAL_MIRROR:-$(debian_mirror)}
  proxy=$(apt-config shell proxy Acquire::http::Proxy | sed "s/^proxy='\(.*\)'$/\1/")
  rm -rf --one-file-system "$dir"
  mkdir -p "$dir"
  isolated env ${proxy:+http_proxy="$proxy"} debootstrap --variant=minbase --include=git,ca-certificates \
    "$release" "$dir" ${mirror:+"$mirror"} >"$log" 2>&1 </dev/null || return
  apt-config dump | grep -E '^Acquire::(http|https|Check-[A-Za-z-]*|Retries)[: ]' >"$dir/etc/apt/apt.conf.d/00host" || true
  cp -L /etc/hosts "$dir/etc/hosts"
  # certificates that were added to this machine
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$dir/usr/local/share/ca-certificates/"
    isolated chroot "$dir" update-ca-certificates >>"$log" 2>&1
  fi
}

# in_root DIR LOG COMMAND: runs it in the clone, with a plain environment; a compiler cache may be shared.
in_root() {
  local dir=$1 log=$2 cache='' name environment=(HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  # how this machine's pip reaches its packages
  for name in PIP_CERT PIP_INDEX_URL PIP_DEFAULT_TIMEOUT; do
    [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
  done
  if ((share_cache)) && command -v ccache >/dev/null; then
    cache=$(ccache --get-config cache_dir)
    mkdir -p "$cache" "$dir/ccache"
    # ccache also distinguishes compilers by the language of their messages
    environment+=(CCACHE_DIR=/ccache "CCACHE_MAXSIZE=$(ccache --get-config max_size)" ${LANG:+LANG="$LANG"})
  fi
  isolated bash -c '
    mount -t proc proc "$1/proc" && mount -t sysfs -o ro sysfs "$1/sys" && mount -t tmpfs tmpfs "$1/dev/shm" || exit
    [[ -z $2 ]] || mount --bind "$2" "$1/ccache" || exit
    exec chroot "$1" env -i "${@:4}" bash -c "cd /root/gradual && $3"
  ' in_root "$dir" "$cache" "$3" "${environment[@]}" >"$log" 2>&1 </dev/null
}

# The commands that the README starts with.
readme_commands() {
  sed -n '/^## Two commands$/,/^## /s/^    \(\.\/dev [a-z]*\)  *#.*/\1/p' "$here/README.md"
}

# What a bare root runs: the README's commands, or its path from a model of PyTorch.
commands_of_root() {
  if ((of_pytorch)); then echo './dev first-verdict'; else readme_commands; fi
}

# try NETWORK_LOG LOG COMMAND...: repeats the command after a pause while the network fails; then the status is
# $proved_nothing. Another failure prints the end of LOG.
try() {
  local network_log=$1 log=$2 attempt
  shift 2
  for attempt in 1 2 3; do
    ! "$@" || return 0
    grep -qE 'Failed getting release file|Couldn.t download|Failed to fetch|Unable to fetch|Temporary failure resolving' \
      "$network_log" || { grep -vE '^ +Start +[0-9]+: | Passed +[0-9.]+ sec$' "$log" | tail -n 60 >&2; return 1; }
    say "the mirror does not answer ($attempt of 3 attempts)"
    ((attempt == 3)) || sleep $((attempt * ${GRADUAL_PAUSE:-30}))
  done
  tail -n 3 "$network_log" >&2
  say "PROVED NOTHING: the mirror does not answer"
  return $proved_nothing
}

fresh_root() {
  local release=$1 dir=$here/build/fresh/$1 log=$here/build/fresh/$1.log line start
  say "$release: making a bare root in $dir"
  start=$SECONDS
  try "$log" "$log" bare_root "$dir" "$release" "$log" || return
  # this git may have to be told that the checkout is another user's
  printf '[safe]\ndirectory = *\n' >"$dir/root/.gitconfig"
  GIT_CONFIG_GLOBAL=$dir/root/.gitconfig git clone -q --depth 1 "file://$here" "$dir/root/gradual" || return
  rm "$dir/root/.gitconfig"
  say "$release: made in $((SECONDS - start)) s, with a clone of $(in_tree log -1 --format='%h (%s)')"
  while IFS= read -r line; do
    [[ $line != './dev test' ]] || ((!shortened)) || line+=" -LE 'long|slow|kills'"
    say "$release: $line (output: $log)"
    start=$SECONDS
    try "$dir/root/gradual/build/apt.log" "$log" in_root "$dir" "$log" "$line" || return
    printf '%-10s %-20s %5d s   %s\n' "$release" "$line" $((SECONDS - start)) "$(grep -E '^[0-9]+% tests passed' "$log")"
    grep -E '^[A-Za-z].* [0-9]+ s$' "$log" || true
  done < <(commands_of_root)
}

# Ends all processes in the root and removes it. Called whenever the shell ends.
leave_fresh() {
  [[ -z ${child:-} ]] || { kill -KILL "$child" && wait "$child"; } 2>/dev/null || true
  ((keep)) || rm -rf --one-file-system "$here/build/fresh/${release:?}"
}

fresh() {
  local argument releases=() status=0 worst=0 release
  keep=0 share_cache=1 shortened=0 of_pytorch=0 child=''
  for argument in "$@"; do
    case $argument in
      bookworm | trixie) releases+=("$argument") ;;
      --keep) keep=1 ;;
      --cold) share_cache=0 ;;
      --quick) shortened=1 ;;
      --pytorch) of_pytorch=1 ;;
      *) fail "fresh: unknown argument $argument (there are bookworm, trixie, --keep, --cold, --quick and --pytorch)" ;;
    esac
  done
  ((${#releases[@]})) || releases=(bookworm trixie)
  ((EUID == 0)) || fail "fresh: debootstrap and chroot need root (sudo ./dev fresh)"
  unshare --mount true 2>/dev/null || fail "fresh: this machine lets even root mount nothing (a container without rights?)"
  (($(readme_commands | wc -l) == 2)) || fail "fresh: README.md, 'Two commands', does not have two lines of commands"
  if ! command -v debootstrap >/dev/null && ! command -v apt-get >/dev/null; then
    fail "fresh: no debootstrap here, and no apt-get to install it with"
  fi
  (need git:git debootstrap:debootstrap debian-archive-keyring) || {
    say "PROVED NOTHING: debootstrap could not be installed"
    return $proved_nothing
  }
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  for release in "${releases[@]}"; do
    trap leave_fresh EXIT
    status=0
    fresh_root "$release" || status=$?
    leave_fresh
    trap - EXIT
    ((status == 0)) || say "$release: FAILED or proved nothing"
    ((status == 0 || worst == 1)) || worst=$status
  done
  return $worst
}
