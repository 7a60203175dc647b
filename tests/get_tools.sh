#!/usr/bin/env bash
# Gets what some tests run that Python's index doesn't have: Chromium (the live page) and promtool (alert rules).
# Says what it can't get, and leaves it to the tests to skip, or to fail with CI=true.
#
#   tests/get_tools.sh .venv
set -euo pipefail
venv=$(realpath "$1")
export DEBIAN_FRONTEND=noninteractive

has() { command -v "$1" > /dev/null; }
is_debian_root() { has apt-get && [ "$(id -u)" = 0 ]; }

if ! has chromium && ! has google-chrome; then
    if ! is_debian_root; then
        echo "Chromium isn't there, and only root can install it: sudo apt-get install chromium" >&2
    elif ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core > /dev/null; }; then
        echo "Chromium isn't there, and can't be installed: see above" >&2
    fi
fi

# Installing Debian's prometheus would start a server. Of its package only promtool is wanted.
if ! has promtool && [ ! -x "$venv/prometheus/promtool" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mkdir -p "$venv/prometheus"
    if ! has apt-get; then
        echo "promtool isn't there: get it from https://prometheus.io/download and put it into PATH" >&2
    elif { ! is_debian_root || apt-get -qq update; } && cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download prometheus; then
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --strip-components=3 --directory "$venv/prometheus" ./usr/bin/promtool
    else
        echo "promtool isn't there, and Debian's prometheus package can't be downloaded: see above" >&2
    fi
fi
