#!/bin/sh
# Is everything here that a build needs? One line for each thing that is missing, with its remedy.
# Only the shell's own words are used: on a bare machine there may be nothing else.
# Usage: check-tools.sh [PYTHON], run anywhere; PYTHON is python3 if not given.

python=${1:-python3}
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
missing=0

lacks() {
    echo "check-tools: $1" >&2
    missing=1
}

# at_least 1.95.0 1.88: is the first version the second or a later one?
at_least() {
    have_major=${1%%.*} have_rest=${1#*.}
    want_major=${2%%.*} want_rest=${2#*.}
    [ "$have_major" -gt "$want_major" ] ||
        { [ "$have_major" -eq "$want_major" ] && [ "${have_rest%%.*}" -ge "${want_rest%%.*}" ]; }
}

remedy="install Python 3.11 or later, or name one with 'make PYTHON=/path/to/python3'"
if ! command -v "$python" >/dev/null 2>&1; then
    lacks "no $python: $remedy"
elif ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    lacks "$python does not run: $remedy"
elif ! at_least "$version" 3.11; then
    lacks "$python is Python $version: $remedy"
else
    for module in venv ensurepip; do
        "$python" -c "import $module" >/dev/null 2>&1 ||
            lacks "$python has no module $module: install it (Debian, Ubuntu: the package python3-venv), or name another Python with 'make PYTHON=/path/to/python3'"
    done
fi

wanted=
while read -r name equals value; do
    case "$name$equals" in "rust-version=") wanted=${value#\"} wanted=${wanted%%\"*} ;; esac
done <"$here/../Cargo.toml"

if ! version=$(rustc --version 2>/dev/null); then
    lacks "no rustc: install Rust $wanted or later with cargo, clippy and rustfmt (rustup has them all)"
else
    version=${version#rustc }
    version=${version%%[ -]*}
    at_least "$version" "$wanted" ||
        lacks "rustc is $version, and Cargo.toml asks for $wanted or later: install a later Rust ('rustup update stable')"
    for tool in fmt clippy; do
        cargo "$tool" --version >/dev/null 2>&1 ||
            lacks "no cargo $tool: 'rustup component add rustfmt clippy', or your system's packages of them"
    done
fi

command -v cc >/dev/null 2>&1 ||
    lacks "no cc to link with: install a C compiler (Debian, Ubuntu: the package gcc)"

exit "$missing"
