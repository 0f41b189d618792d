#!/usr/bin/env bash
# test-guides.sh RELEASE: runs the sh blocks of the README and of every guide as a reader would,
# with the program in the folder RELEASE. Each text has its own folder and network. The script waits
# for targets that a block starts in the background, and stops all targets and attachments at the
# end.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: test-guides.sh RELEASE" >&2; exit 2; }
release=$(cd "$1" && pwd)

die() {
    echo "test-guides.sh: $*" >&2
    exit 1
}
for need in curl etcd fio ip qemu-img unshare; do
    command -v "$need" >/dev/null || die "install the command $need (interop/packages.sh does)"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the script to run: the blocks, and a wait after each block that starts a target.
script() {
    echo 'set -eux -o pipefail'
    echo 'listens() { for _ in $(seq 600); do ! farblock status >/dev/null 2>&1 || return 0'
    echo '    sleep 0.1; done; echo "no target answers"; exit 1; }'
    awk '/^```sh$/ { inside = 1; serves = 0; next }
        /^```$/ && inside { inside = 0; if (serves) print "listens"; next }
        inside { print; if (/^farblock serve .*&$/) serves = 1 }' "$1"
}

run() {
    local guide=$1 folder
    folder=$work/$(basename "$guide" .md)
    mkdir -p "$folder/runtime"
    script "$guide" >"$folder/run.sh"
    grep -q '^farblock ' "$folder/run.sh" || die "$guide has no sh block that runs farblock"
    (
        cd "$folder"
        unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID
        export PATH=$release:$PATH FARBLOCK_RUNTIME_DIR=$folder/runtime/farblock
        export XDG_STATE_HOME=$folder/state XDG_CONFIG_HOME=$folder/config
        # The PID namespace ends all processes.
        timeout 120 unshare --map-root-user --net --pid --kill-child --fork --mount-proc \
            bash -c 'ip link set lo up && bash run.sh' >said 2>&1
    ) || die "$guide: $(tail -n 20 "$folder/said")"
}

guides=("$here/../README.md")
for guide in "$here"/../docs/guides/*.md; do
    [ "${guide##*/}" = README.md ] || guides+=("$guide")
done
for guide in "${guides[@]}"; do
    # RDMA needs a device of the kernel. The guest job rdma-faces runs these commands.
    [ "${guide##*/}" = rdma.md ] || run "$guide"
done
# Every link must lead to a file.
for guide in "${guides[@]}" "$here/../docs/guides/README.md"; do
    { grep -o '](\([^)#:]*\)' "$guide" || true; } | cut -c3- | while read -r link; do
        [ -e "$(dirname "$guide")/$link" ] || die "$guide: there is no $link"
    done
done
echo "guides: $((${#guides[@]} - 1)) guides run without errors"
