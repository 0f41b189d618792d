#!/bin/bash
# Tests farblock on Windows, as far as Wine can: the portable crates' tests, then farblock.exe
# against this system's farblock, in both directions.
#
#   test.sh FARBLOCK      FARBLOCK is this system's binary, e.g. target/release/farblock
#
# FARBLOCK_WINSPD=FOLDER (a Windows path such as Z:\home\me\winspd) makes winspd's tests use the
# WinSpd build in that folder, winspd-x64.dll and stgtest.exe, in addition to a substitute library.
# Runs setup.sh first. FARBLOCK_WINDOWS_ONLY=peers skips the crates' tests;
# FARBLOCK_WINDOWS_ONLY=build only builds.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() {
    echo "test.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
[ $# = 1 ] || die "name this system's farblock: test.sh target/release/farblock"
farblock=$(realpath "$1")
[ -x "$farblock" ] || die "$1 is no program: build it with 'make build'."

cd "$here/../.."
environment=$("$here/setup.sh" --env)
# shellcheck disable=SC1090 # written by setup.sh
. "$environment"
# Build without debug information, because cargo links two hundred programs. Use a separate folder:
# a compiler in nightly mode rebuilds the macros, and so all crates that this system's tests have
# built.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/windows
# Do not check with clippy: this copy of the compiler lacks it.
unset RUSTC_WORKSPACE_WRAPPER
# insta would run cargo to find the workspace, but Wine cannot run cargo.
export INSTA_WORKSPACE_ROOT=$PWD INSTA_UPDATE=no
scratch=$(mktemp -d)
servers=()
stop_servers() {
    local server
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    [ ${#servers[@]} = 0 ] || wait "${servers[@]}" 2>/dev/null || true
    servers=()
}
# Keeps Wine's session alive for all programs. Otherwise the session and its services restart with
# each program, which doubles the time of the first suites (a minute and a half more).
start_session() {
    wineserver --wait
    wineserver --foreground --persistent >"$scratch/session.log" 2>&1 &
    session=$!
    timeout 300 wine wineboot >"$scratch/boot.log" 2>&1 </dev/null || die "Wine does not start."
}
stop_session() {
    [ -z "${session:-}" ] || { wineserver --kill && wait "$session"; } || true
}
trap 'stop_servers; stop_session; rm -rf "$scratch"' EXIT
# Crates without code for a particular system: their tests would only repeat the results on Linux.
# The event loops and files that `volumes` uses have tests of their own. docs/windows.md lists these
# crates, too.
left_out=(tidy wire proto secure random testkit volumes
    sim fleet-sim # the simulations contain no Windows code
)
# cargo makes the C header from the sources, and Wine cannot run cargo.
left_out_tests=(--skip the_header_is_up_to_date)

# Builds with these arguments, and writes cargo's messages to $scratch/built.
build() {
    # shellcheck disable=SC2086 # words
    cargo "$1" --locked $FARBLOCK_WINDOWS_CARGO --message-format json-render-diagnostics "${@:2}" \
        >"$scratch/built" || die "farblock does not build for Windows; cargo's output is above."
}

# Runs the crates' suites. On a busy machine Wine sometimes cannot start a process (internal error
# 1359), starts a program that does nothing, or does not end a finished program, because a thread
# died while it held a lock of Wine. Therefore suites.py repeats failures.
run_suites() {
    "$here/../../contrib/suites.py" "$scratch/built" --runner wine --timeout 600 \
        --args "${left_out_tests[*]}" ||
        die "a suite failed; its output is above."
}

build_suites() {
    # xtask starts Linux peers.
    local crates=(--workspace --all-features "${left_out[@]/#/--exclude=farblock-}" --exclude=xtask)
    # Build the library that winspd's tests load, because the builds of tests do not include it.
    # Name all crates, so that this build and the next build share their results.
    build build "${crates[@]}" --example winspd_standin
    # Without --lib --bins --tests cargo would also build examples, some of which are for Linux.
    build test --no-run "${crates[@]}" --lib --bins --tests
}

case ${FARBLOCK_WINDOWS_ONLY:-} in
    build) build_suites && exit ;;
    peers) build build -p farblock ;;
    *) build_suites ;;
esac
exe=$(jq -r 'select(.executable != null and .target.name == "farblock"
    and .target.kind == ["bin"] and (.profile.test | not)).executable' "$scratch/built")
# Put OpenSSL's libraries beside the programs and tests, which search no other folder.
openssl=$(dirname "$environment")/openssl
"$here/openssl.sh" "$openssl"
for folder in "${exe%/*}" "${exe%/*}/deps"; do cp "$openssl"/*.dll "$folder/"; done
start_session
[ "${FARBLOCK_WINDOWS_ONLY:-}" = peers ] || run_suites

cd "$scratch"
export XDG_CONFIG_HOME=$scratch/config
# Prints the Windows path of a file.
windows_path() { echo "Z:${1//\//\\}"; }
run_windows() { wine "$exe" "$@"; }
run_linux() { "$farblock" "$@"; }

checks=0
ok() {
    checks=$((checks + 1))
    echo "ok $checks - $*"
}

# serve SIDE ARGUMENTS...: starts a target on a free port; sets `address` and `url`.
serve() {
    local side=$1 said=$scratch/said.$RANDOM line
    shift
    # Do not start the program through the function: its shell would receive the signal instead.
    local program=("$farblock")
    [ "$side" = linux ] || program=(wine "$exe")
    "${program[@]}" serve --listen 127.0.0.1:0 --json "$@" >"$said" 2>"$said.err" </dev/null &
    servers+=($!)
    for _ in $(seq 200); do
        line=$(grep -m 1 '^{' "$said" || true)
        [ -z "$line" ] || break
        sleep 0.1
    done
    [ -n "$line" ] || die "the target on $side does not listen: $(cat "$said" "$said.err")"
    address=$(jq -r '.listening[0]' <<<"$line")
    url="nvme+tcp://$address/$(jq -r '.subsystems[0].nqn' <<<"$line")?ns=1"
}

# One side serves, and the other side uses all functions of the host.
both_ways() {
    local target=$1 host=$2 disk=$3 name
    name="$host host, $target target"
    serve "$target" "$disk" mem:64MiB
    "run_$host" discover "$address" >out
    grep -q "nvme+tcp\|nqn" out || die "$name: discover says: $(cat out)"
    ok "$name: discover"
    "run_$host" id "$url" --json >out
    jq -e . out >/dev/null || die "$name: id says: $(cat out)"
    ok "$name: id"
    local digests
    for digests in "" "--header-digest --data-digest"; do
        # shellcheck disable=SC2086 # options, or none
        "run_$host" write "$url" $digests --offset 1MiB <noise
        # shellcheck disable=SC2086
        "run_$host" read "$url" $digests --offset 1MiB --length "$(stat -c %s noise)" >back
        cmp noise back || die "$name: reads return other data than was written ($digests)"
        ok "$name: write, read, the same bytes${digests:+, with digests}"
    done
    "run_$host" copy noise "${url%1}2"
    "run_$host" copy --length "$(stat -c %s noise)" "${url%1}2" "copied.$host"
    cmp noise "copied.$host" || die "$name: the copy differs from the file"
    ok "$name: copy there and back"
    "run_$host" bench "$url" --patterns read --runtime 2s --ramp-time 0 --json - >out
    jq -e '[.patterns[].remote | select(.iops > 0 and .host_cpu.us_per_io > 0)] | length == 3' \
        out >/dev/null || die "$name: bench says: $(cat out)"
    ok "$name: bench, with the host's processor time"
    stop_servers
}

host_nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555

# data_moves NAME HOST OPTION...: writes data, and checks that reads return them.
data_moves() {
    local name=$1 host=$2
    shift 2
    "run_$host" write "$url" "$@" --offset 1MiB <noise
    "run_$host" read "$url" "$@" --offset 1MiB --length "$(stat -c %s noise)" >back
    cmp noise back || die "$name: reads return other data than was written"
}

# Tests TLS between both sides, with a key of each hash, and with a key from an authentication.
secured() {
    local target=$1 host=$2 name hash
    name="$host host, $target target, TLS"
    for hash in sha256 sha384; do
        rm -f tls.key other.key
        "run_$target" keys new --tls --hash "$hash" --output tls.key
        "run_$host" keys new --tls --hash "$hash" --output other.key
        chmod 600 tls.key other.key # Wine gives all users access to new files.
        serve "$target" mem:64MiB --tls-key "$host_nqn=tls.key"
        url+="&hostnqn=$host_nqn"
        data_moves "$name" "$host" --tls-key tls.key
        ! "run_$host" id "$url" --tls-key other.key >out 2>&1 || die "$name: a wrong key works"
        grep -q "refuses TLS" out || die "$name: with another key, the host says: $(cat out)"
        ! "run_$host" id "$url" >out 2>&1 || die "$name: a host without a key is admitted"
        ok "$name: write and read with the key; a wrong key and no key are refused ($hash)"
        stop_servers
    done
    rm -f host.key
    "run_$host" keys new --output host.key
    chmod 600 host.key
    serve "$target" mem:64MiB --tls allowed --host-key "$host_nqn=host.key"
    url+="&hostnqn=$host_nqn"
    data_moves "$name" "$host" --dhchap-secret host.key --concat
    ok "$name: write, read, with a TLS key from an authentication"
    stop_servers
}

# farblock must load OpenSSL only from the program's folder, and without OpenSSL's configuration.
placed() {
    local alone=$scratch/alone
    mkdir "$alone"
    cp "$exe" "$alone/farblock.exe"
    own() { (cd "$openssl" && WINEPATH=$(windows_path "$openssl") wine "$alone/farblock.exe" "$@"); }
    serve linux mem:64MiB --tls-key "$host_nqn=tls.key"
    url+="&hostnqn=$host_nqn"
    ! own id "$url" --tls-key "$(windows_path "$scratch/tls.key")" >out 2>&1 ||
        die "OpenSSL is loaded from the working folder, or from PATH"
    grep -q "put libcrypto-3-x64.dll and libssl-3-x64.dll into .*alone" out ||
        die "without OpenSSL, farblock.exe says: $(cat out)"
    ok "OpenSSL in the working folder and in PATH is not loaded"
    cp "$openssl"/*.dll "$alone/"
    # With this configuration OpenSSL would have no algorithms.
    printf 'openssl_conf = init\n[init]\nproviders = some\n[some]\nnull = on\n[on]\nactivate = 1\n' \
        >openssl.cnf
    OPENSSL_CONF=$(windows_path "$scratch/openssl.cnf") \
        own id "$url" --tls-key "$(windows_path "$scratch/tls.key")" >out 2>&1 ||
        die "OpenSSL beside farblock.exe, with a configuration: $(cat out)"
    ok "OpenSSL beside farblock.exe is loaded, without OpenSSL's configuration"
    stop_servers
}

# is_soon WHAT COMMAND...: waits until a command succeeds, with a timeout.
is_soon() {
    local what=$1
    shift
    for _ in $(seq 100); do
        ! "$@" || return 0
        sleep 0.3
    done
    die "not within the time limit: $what"
}

# Whether the jq expression is true for the list of attachments.
attached() { run_windows list --json >list 2>list.err && jq -e "$1" list >/dev/null; }
state_is() { wine sc query farblock </dev/null | grep "STATE .*$1" >/dev/null; }

# Windows's service manager runs the service, which attaches the disk of a file and detaches it.
service() {
    local folder=$WINEPREFIX/drive_c/ProgramData/farblock before killed
    # Remove the remains of an aborted run.
    run_windows service remove >/dev/null 2>&1 || true
    rm -rf "$folder"
    serve linux mem:64MiB
    run_windows service install >out
    grep -q "net start farblock" out || die "service install says: $(cat out)"
    ! run_windows service install 2>out || die "the service is registered twice"
    grep -q "already registered" out || die "service install says: $(cat out)"
    ok "the service is registered, and a second registration is refused"
    printf 'urls = ["%s"]\nas = "iscsi"\nlisten = "127.0.0.1:0"\n' "$url" >"$folder/attach.d/boot.toml"
    echo 'url = 1' >"$folder/attach.d/wrong.toml"
    # Wine starts the service at its own start, as Windows does at boot.
    is_soon "the service runs" eval 'state_is RUNNING || ! wine sc start farblock </dev/null >/dev/null'
    wine sc stop farblock </dev/null >/dev/null
    is_soon "the service stops" state_is STOPPED
    wine net start farblock </dev/null >/dev/null || die "net start fails"
    is_soon "boot is attached" attached '.[0] | .name == "boot" and .state == "live"'
    state_is RUNNING || die "the service does not run"
    is_soon "the log names the file" grep -q "wrong.toml.*there is no key" "$folder/service.log"
    ok "the service attaches the disk of a valid file, and logs the error in the invalid file"
    times() { state_is RUNNING && [ "$(grep -c 'boot is attached' "$folder/service.log")" = "$1" ]; }
    before=$(grep -c 'boot is attached' "$folder/service.log")
    for killed in $(jq '.[0].pid, .[0].server_pid' list); do
        wine taskkill /F /PID "$killed" </dev/null >/dev/null
    done
    # Do not use `list`, which would clean up. But some program must run all the time, because Wine
    # stops its services with the last program.
    is_soon "boot is attached again" times $((before + 1))
    attached '.[0] | .name == "boot" and .state == "live"' || die "the disk boot is not attached and live: $(cat list)"
    ok "the service attaches a disk again after its processes were killed"
    wine sc stop farblock </dev/null >/dev/null
    is_soon "the service stops" state_is STOPPED
    attached '. == []' || die "a stopped service leaves: $(cat list)"
    ok "a stopped service detaches"
    wine sc start farblock </dev/null >/dev/null
    is_soon "boot is attached" attached '.[0].state == "live"'
    run_windows service remove >out
    grep -q "no longer registered" out || die "service remove says: $(cat out)"
    attached '. == []' || die "a removed service leaves: $(cat list)"
    ! run_windows service remove 2>out || die "the service is removed twice"
    grep -q "is not registered" out || die "service remove says: $(cat out)"
    ok "the service is stopped and removed"
    rm -rf "$folder"
    stop_servers
}

head -c 5000000 /dev/urandom >noise
truncate -s 64M linux.img windows.img
both_ways linux windows "$scratch/linux.img"
# The file itself must hold the bytes, not only the target's answers.
cmp -n "$(stat -c %s noise)" noise linux.img 0 1048576 || die "the Linux target's file differs"
ok "the Linux target's file has what Windows wrote"
both_ways windows linux "$(windows_path "$scratch/windows.img")"
cmp -n "$(stat -c %s noise)" noise windows.img 0 1048576 || die "the Windows target's file differs"
ok "the Windows target's file has what Linux wrote"
secured linux windows
secured windows linux
placed
service
echo "windows: all $checks checks passed"
