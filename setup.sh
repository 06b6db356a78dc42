#!/usr/bin/env bash
# Install everything for the commands of make: setup.sh PYTHON STAMP
set -euo pipefail
python=$1 stamp=$2

stop() {
  echo "error: $*" >&2
  exit 2
}

apt() { # install with apt, as root
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return
  echo "installing $1 with apt"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
}

if [[ $python == .venv/* ]] && ! "$python" -m pip --version >/dev/null 2>&1; then
  base=$(command -v python3.11 || command -v python3 || true)
  "${base:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "Python 3.11 or newer is missing; install it, or use conda with environment.yml"
  "$base" -m venv --clear .venv >/dev/null 2>&1 || { apt python3-venv && "$base" -m venv --clear .venv; } ||
    stop "$base cannot create a virtual environment; run 'sudo apt-get install python3-venv', then make again"
fi
command -v ffmpeg >/dev/null || apt ffmpeg ||
  stop "ffmpeg (5.1 to 9) is missing; run 'sudo apt-get install ffmpeg' or 'conda install -c conda-forge ffmpeg'"

echo "installing the Python packages (a few minutes the first time)"
"$python" -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt
"$python" -c 'import torch, librosa, h5py, dask.distributed, ffmpeg, nvidia.dali, simplejpeg, numba'
touch "$stamp"
