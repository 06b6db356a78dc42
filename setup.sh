#!/usr/bin/env bash
# Install ffmpeg and the dependencies of pyproject.toml; make runs this when these have changed.
#   setup.sh PYTHON STAMP
set -euo pipefail
python=$1 stamp=$2

if [[ $python == .venv/* ]] && ! "$python" -m pip --version >/dev/null 2>&1; then
  rm -rf .venv  # incomplete, or missing
  base=$(command -v python3.11 || command -v python3) || { echo "error: Python 3.11 or newer is missing; install it, or use conda with environment.yml" >&2; exit 2; }
  "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: $base is older than Python 3.11; install Python 3.11, or use conda with environment.yml" >&2; exit 2; }
  if ! "$base" -m venv .venv >/dev/null 2>&1; then
    rm -rf .venv
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
      "$base" -m venv .venv
    else
      echo "error: $base cannot create a virtual environment; run 'sudo apt-get install python3-venv', then make again" >&2
      exit 2
    fi
  fi
fi

if ! command -v ffmpeg >/dev/null; then
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "installing ffmpeg with apt"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq ffmpeg >/dev/null
  else
    echo "error: ffmpeg is missing; run 'sudo apt-get install ffmpeg' or 'conda install -c conda-forge ffmpeg'" >&2
    exit 2
  fi
fi

# git may touch the files without a change
digest=$({ pwd; cat pyproject.toml constraints.txt setup.sh; } | sha256sum)
if [[ -f $stamp && $(<"$stamp") == "$digest" ]]; then
  touch "$stamp"
  exit
fi

echo "installing the Python packages (a few minutes the first time)"
"$python" -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt

# The compiled parts of torchaudio's wheel need CUDA, and cannot be imported if torch has none. Without them torchaudio
# uses Python code, which is enough here.
"$python" - <<'PY'
import pathlib
import importlib.util
import torch

if torch.version.cuda is None:
    package = pathlib.Path(importlib.util.find_spec("torchaudio").origin).parent
    for library in package.glob("lib/*.so"):
        library.unlink()
PY
"$python" -c 'import torch, torchaudio, librosa, h5py, dask.distributed, ffmpeg, nvidia.dali, simplejpeg, numba'
"$python" - <<'PY'
from gdt.common.gpu import problem

if found := problem():
    print(f"warning: {found}")
PY
mkdir -p "$(dirname "$stamp")"
echo "$digest" >"$stamp"
