# Shared by the scripts: messages, packages, the target folder. Sourced, never run.

cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/governed-ledger"
target="${CARGO_TARGET_DIR:-$PWD/target}"

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
if [[ ! -t 2 || -n "${NO_COLOR:-}" ]]; then
    say() { printf '\n%s\n' "$*" >&2; }
fi

# fail_with CODE MESSAGE [LINE...]
fail_with() {
    local code="$1" message="$2"
    shift 2
    printf '%s\n' "error: $message" "$@" >&2
    exit "$code"
}

# It could not run: fail MESSAGE [LINE...]
fail() { fail_with 2 "$@"; }

# The comment that a script begins with. Called in the project's folder, where
# the path that the script was started by may lead nowhere.
show_help() {
    awk 'NR > 1 { if (!sub(/^# ?/, "")) exit; print }' "scripts/${0##*/}"
}

# Runs a command as root: as it is, or through sudo.
as_root() {
    if [[ "$(id -u)" == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "root is needed to run: $*" "hint: run it once yourself, then this script again"
    fi
}

# Installs Debian packages; says which.
install_packages() {
    command -v apt-get >/dev/null || fail "apt-get is not here; install by hand: $*"
    say "Installing $*"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# Installs PACKAGES unless COMMAND is there: need COMMAND PACKAGE...
need() {
    local command="$1"
    shift
    command -v "$command" >/dev/null || install_packages "$@"
    command -v "$command" >/dev/null || fail "$command is still missing after installing $*"
}

# What crash trials use: file systems that can be cut, calls that fail, clocks
# that are set; and what the tests of bundles compare with.
need_crash_tools() {
    need python3 python3
    need mkfs.ext4 e2fsprogs
    need mount mount
    need strace strace
    need zstd zstd
    need faketime faketime
}

# Debian's PyTorch for Debian's Python, which the example and its tests run with.
need_torch() {
    need /usr/bin/python3 python3
    /usr/bin/python3 -c 'import torch' 2>/dev/null || install_packages python3-torch libopenblas0-pthread
    /usr/bin/python3 -c 'import torch' || fail "python3-torch is installed, but /usr/bin/python3 cannot import torch"
}

need_rust() {
    command -v cargo >/dev/null || fail "cargo is not installed" "hint: install Rust; rust-toolchain.toml names the version"
}

# A virtual environment in the cache folder with the given packages: prints its path.
python_environment() {
    local name="$1"
    shift
    local folder="$cache/python-$name"
    local stamp="$folder/installed"
    if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$*" ]]; then
        need python3 python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
        rm -rf "$folder"
        mkdir -p "$cache"
        # `set -e` does not reach into a command substitution.
        python3 -m venv "$folder" >&2 || return 1
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2 || return 1
        printf '%s' "$*" >"$stamp"
    fi
    printf '%s' "$folder"
}

# The tools that exports are shown to, pinned: prints the environment's path.
interop_environment() {
    # model-signing imports pyOpenSSL and does not ask for it.
    python_environment interop model-signing==1.1.1 pyOpenSSL==26.4.0 securesystemslib==1.6.0 in-toto-attestation==0.9.3 \
        rocrate==0.16.0 roc-validator==0.13.0
}

# The tools that read metrics, with MLflow's server: prints the environment's path.
tracking_environment() {
    python_environment tracking mlflow==3.17.2 prometheus-client==0.26.0 mlperf-logging==4.1.68 trackio==0.43.0
}

# A witness and a verifier of heads that are not this project's, pinned: prints the
# environment's path. They ask for Python 3.12; Debian 12 has 3.11, and they use
# nothing that it lacks.
witness_environment() {
    python_environment witness --ignore-requires-python aics-tlog==0.2.1 aics-witness==0.1.0 cryptography==50.0.2
}

# Builds the Python package as a wheel, with the maturin that the README names, and
# unpacks it into a folder: install_wheel PYTHON FOLDER.
install_wheel() {
    local python="$1" folder="$2" maturin
    maturin="$(grep -om1 'maturin==[0-9.]*' README.md)" || fail "the README names no version of maturin"
    maturin="$(python_environment maturin "$maturin")/bin/maturin" || fail "maturin could not be installed"
    "$maturin" build --quiet --locked --profile dev --manifest-path python/Cargo.toml --out "$folder/wheels" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" \
        "$folder"/wheels/governed_ledger-*-abi3-*.whl >&2
}
