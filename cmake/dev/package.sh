# shellcheck shell=bash
# ./dev package: packages for Debian and an archive. Sourced by dev, after fresh.sh.

# Installs the packages in a bare root; there the lab runs, and a project is compiled by CMake and by pkg-config.
check_packages() {
  local dir=$here/build/fresh/package log=$here/build/fresh/package.log
  local ID='' VERSION_CODENAME='' release=package keep=0 share_cache=0 child=''
  ((EUID == 0)) || fail "package --check: debootstrap and chroot need root"
  need debootstrap:debootstrap debian-archive-keyring
  # shellcheck source=/dev/null
  . /etc/os-release
  trap leave_fresh EXIT
  say "making a bare Debian ($VERSION_CODENAME) in $dir"
  try "$log" bare_root "$dir" "$VERSION_CODENAME" "$log" || return
  mkdir -p "$dir/root/gradual"
  cp -r "$here"/build/package/packages/*.deb "$here/tests/consumer" "$dir/root/gradual/"
  # shellcheck disable=SC2016  # expanded there
  try "$log" in_root "$dir" "$log" 'set -ex
    apt-get update && apt-get install -y --no-install-recommends ./*.deb && gradual-lab --version
    gradual-lab --model mlp --recipes fp32,amp-fp16 --seeds 1 --epochs 1 --out /tmp/out && ls /tmp/out
    apt-get install -y --no-install-recommends cmake make pkg-config g++ gdb
    cmake -S consumer -B /tmp/consumer && cmake --build /tmp/consumer && /tmp/consumer/consumer
    g++ -g -std=c++20 consumer/main.cpp $(pkg-config --cflags --libs gradual) -o /tmp/by-pkg-config && /tmp/by-pkg-config
    gdb -batch -ex "break main" -ex run -ex "info pretty-printer" /tmp/by-pkg-config | grep -A6 "^  gradual"
    apt-get purge -y libgradual-dev gradual-lab gradual-doc && [[ ! -e /usr/include/gradual ]]' || return
  grep -E '^gradual' "$log"
  say "installed, used and removed in a bare Debian (all of its output: $log)"
  leave_fresh
  trap - EXIT
}

package() {
  local dir=$here/build/package check=0 name mail
  case ${1:-}${2:+ more} in
    '') ;;
    --check) check=1 ;;
    *) fail "package: unknown argument ${*: -1} (there is --check)" ;;
  esac
  need "${base[@]}" "${for_lab[@]}" dpkg-shlibdeps:dpkg-dev lintian:lintian
  name=${DEBFULLNAME:-$(in_tree config user.name || true)}
  mail=${DEBEMAIL:-$(in_tree config user.email || true)}
  [[ -n $name && -n $mail ]] || fail "package: who makes the packages? Set DEBFULLNAME and DEBEMAIL"
  configure package GRADUAL_PACKAGER="$name <$mail>"
  compile package all
  rm -rf "$dir/packages"
  (cd "$dir" && cpack) >"$dir/cpack.log" 2>&1 || { cat "$dir/cpack.log" >&2; fail "cpack failed"; }
  (cd "$dir/packages" && sha256sum -- *.deb *.tar.gz >SHA256SUMS && du -h -- *.deb *.tar.gz)
  say "lintian:"
  lintian --allow-root --fail-on error "$dir"/packages/*.deb || fail "lintian found errors"
  ((!check)) || check_packages
}
