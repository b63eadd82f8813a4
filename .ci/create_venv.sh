#!/usr/bin/env bash
# Creates a virtual environment with Python 3.11 or newer: create_venv.sh FOLDER
set -euo pipefail

usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
for python in python3 python3.13 python3.12 python3.11; do
  if "$python" -c "$usable" 2>/dev/null; then
    echo "Creating $1 with $("$python" --version)"
    exec "$python" -m venv "$1"
  fi
done
echo "No Python 3.11 or newer with the module venv was found." >&2
echo "On Debian: apt-get install python3-venv python3-dev" >&2
exit 1
