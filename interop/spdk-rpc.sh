#!/bin/bash
# spdk-rpc.sh FARBLOCK: SPDK's own client, from the Python package index, drives 'farblock serve
# --spdk-rpc' (spdk/check.py). The parameters of every method must match those of SPDK's package.
# FARBLOCK is the binary. The package is kept in ~/.cache/farblock-spdk-rpc (or
# FARBLOCK_SPDK_RPC_DIR). Takes seconds. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail

. "$(dirname "$0")/python.sh"

binary "$@"
cache=${FARBLOCK_SPDK_RPC_DIR:-${HOME:?set FARBLOCK_SPDK_RPC_DIR}/.cache/farblock-spdk-rpc}
environment spdk 26.9 spdk-rpc "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" "$here/spdk/check.py" "$farblock" "$venv/bin/spdk-rpc" "$work"
