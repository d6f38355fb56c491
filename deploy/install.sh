#!/bin/sh
# Installs cuPilot into .venv from constraints.txt: uv where it can be had (7 s), else pip (2 min). torch is a step of
# its own, since a plain install would take its CUDA build, several gigabytes, on every Linux machine.
set -eu
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE || true

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$1" >&2; shift; for hint in "$@"; do printf '  %s\n' "$hint" >&2; done; exit 1; }

find_python() {
    # 3.11 first: the version that constraints.txt was tested with.
    for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
        path=$(command -v "$name" 2>/dev/null) || continue
        if "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$path"; return; fi
    done
    return 1
}

check_compiler() {
    command -v g++ >/dev/null 2>&1 && return
    fail "no g++: it builds the kernels of the cpu target" \
        "Debian, Ubuntu:  apt-get install g++" "Fedora, RHEL:    dnf install gcc-c++" "conda:           conda install -c conda-forge gxx"
}

make_venv() {
    [ -x .venv/bin/python ] && .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    python=$(find_python) || fail "no Python 3.11 or newer on the PATH" \
        "Debian 12, Ubuntu 24.04:  apt-get install python3 python3-venv" "or tell where it is:      make install PYTHON=/path/to/python3"
    rm -rf .venv
    if command -v uv >/dev/null 2>&1; then uv venv --quiet --python "$python" .venv; return; fi
    "$python" -m venv .venv >/dev/null || fail "$python cannot make a virtual environment" "Debian, Ubuntu:  apt-get install python3-venv"
}

find_uv() {
    UV=$(command -v uv 2>/dev/null) && return
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv >/dev/null 2>&1 && UV=.venv/bin/uv && return
    UV=
}

install() {
    if [ -n "$UV" ]; then "$UV" pip install --quiet --python .venv/bin/python --constraint constraints.txt "$@"
    else .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"; fi
}

has_torch() {
    .venv/bin/python -c "import sys; from importlib.metadata import version
sys.exit(version('torch').split('+')[0] != sys.argv[1])" "${1#*==}" 2>/dev/null
}
# uv compiles no bytecode, and judges cannot write here: each data folder would have to keep a copy of its own.
compile_torch() {
    folder=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    .venv/bin/python -m compileall -q -j 0 "$folder/torch" "$folder/sympy" "$folder/mpmath" >/dev/null 2>&1 || true
}
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }
local_torch() {
    for folder in $(printf %s "${UV_FIND_LINKS:-}" | tr ',' ' '); do ls "$folder"/torch-*.whl >/dev/null 2>&1 && return; done
    return 1
}

install_torch() {
    torch=$(grep '^torch==' constraints.txt)
    has_torch "$torch" && return
    if local_torch && ! has_gpu; then install "$torch" && return; fi
    if [ -n "$UV" ]; then
        backend=cpu; if has_gpu; then backend=auto; fi
        "$UV" pip install --quiet --python .venv/bin/python --torch-backend "$backend" "$torch" && return
        say "PyTorch's own index cannot be reached; taking torch from the ordinary one (its CUDA build, several GB)"
    fi
    install "$torch"
}

started=$(date +%s)
# As pip does: trust what the system trusts, which behind a company's proxy is more than uv's own list.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
# uv knows pip's local wheels by another name, and separates folders by commas.
UV_FIND_LINKS=${UV_FIND_LINKS:-$(printf %s "${PIP_FIND_LINKS:-}" | tr ' ' ',')}
if [ -n "$UV_FIND_LINKS" ]; then export UV_FIND_LINKS; else unset UV_FIND_LINKS; fi
check_compiler
make_venv
find_uv
say "Installing into .venv ($(.venv/bin/python --version), ${UV:-pip})"
install_torch
# compat: the folder itself on the path, so that a new package is found without installing again.
install --config-settings editable_mode=compat --editable '.[dev]'
compile_torch
say "Installed in $(($(date +%s) - started)) s"
