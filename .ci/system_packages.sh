#!/usr/bin/env bash
# Makes sure that system packages are present:
#     system_packages.sh build|test PYTHON
# Installs what is missing with apt-get, or says what to install.
set -euo pipefail

has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }

has_browser() {
  command -v chromium-headless-shell || command -v chromium || command -v google-chrome
} >/dev/null
may_install() { [[ $(id -u) -eq 0 ]] || command -v sudo; } >/dev/null

missing=()
command -v g++ >/dev/null || missing+=(g++)
python_header='import os, sysconfig
print(os.path.join(sysconfig.get_paths()["include"], "Python.h"))'
[[ -f $("$2" -c "$python_header") ]] || missing+=(python3-dev)
if [[ "$1" == test ]]; then
  has_header gtest/gtest.h || missing+=(libgtest-dev)
  # Reports are tested in a browser where there is one; nothing fails without.
  if ! has_browser && may_install &&
    apt-cache show chromium-headless-shell >/dev/null 2>&1; then
    missing+=(chromium-headless-shell)
  fi
fi
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing system packages: ${missing[*]}" >&2
    echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null; then
  echo "Missing system packages (names on Debian): ${missing[*]}" >&2
  echo "This system has no apt-get; install them with its own manager." >&2
  exit 1
fi
echo "Installing system packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
