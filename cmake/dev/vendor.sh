# shellcheck shell=bash
# ./dev vendor: the headers that a build needs, for a machine without packages. Sourced by dev.

# Copies files of this system's packages from /usr to vendor/usr: headers, CMake files and static libraries.
vendor() {
  command -v dpkg-query >/dev/null || fail "vendor copies the files of Debian's packages: it needs Debian or Ubuntu"
  local packages=(libeigen3-dev nlohmann-json3-dev libfmt-dev zlib1g-dev libcli11-dev doctest-dev libbenchmark-dev) file
  need "${packages[@]}"
  rm -rf "$here/vendor"
  mkdir -p "$here/vendor"
  dpkg-query -L "${packages[@]}" | grep -E '/(include|cmake|pkgconfig)/|\.a$' | sort -u | while IFS= read -r file; do
    [[ -f $file ]] && (cd / && cp --parents -L "${file#/}" "$here/vendor/")
  done
  # files that the CMake files of these packages name
  for file in libfmt libbenchmark; do
    find /usr/lib -name "$file*.so*" -exec sh -c 'cd / && cp --parents -P "${1#/}" "$2/vendor/"' _ {} "$here" \;
  done
  say "$(du -sh "$here/vendor" | cut -f1) in vendor/: ./dev there uses them, where the system has no such packages"
}
