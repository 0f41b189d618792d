#!/usr/bin/env bash
# test-install.sh RELEASE: installs the build in the folder RELEASE into a temporary folder, checks
# every file with the program that uses it, uninstalls, and checks that no file remains.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: test-install.sh RELEASE" >&2; exit 2; }
release=$(cd "$1" && pwd)

die() {
    echo "test-install.sh: $*" >&2
    exit 1
}
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR
for need in mandoc fish zsh systemd-analyze pkg-config; do
    command -v "$need" >/dev/null || die "install $need (interop/packages.sh does)"
done

work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
export DESTDIR=$work/root HOME=$work/home XDG_RUNTIME_DIR=$work/runtime
export FARBLOCK_RUNTIME_DIR=$work/runtime/farblock
unset LISTEN_FDS LISTEN_PID NOTIFY_SOCKET
mkdir -p "$HOME" "$XDG_RUNTIME_DIR" "$DESTDIR"
for odd in relative '/opt/a&b' '/opt/a b' '/opt/a#b'; do
    ! "$here/install.sh" "$release" "$odd" 2>/dev/null || die "install.sh accepted PREFIX $odd"
done
"$here/install.sh" "$release" /usr
usr=$DESTDIR/usr

# files PATTERN...: checks that each pattern matches a file.
files() {
    local one
    for one in "$@"; do
        [ -f "$usr/$one" ] || die "there is no $one"
    done
}
files bin/farblock lib/systemd/system/farblock{,-attach@}.service \
    lib/systemd/system/farblock.socket include/farblock.h \
    lib/libfarblock.{a,so} lib/pkgconfig/farblock.pc share/doc/farblock/farblock.toml \
    share/man/man1/farblock{,-serve,-attach,-ctl-add-namespace}.1 \
    share/bash-completion/completions/farblock share/zsh/site-functions/_farblock \
    share/fish/vendor_completions.d/farblock.fish
[ "$(find "$DESTDIR" -type f -not -path "*/farblock*" -not -name "*farblock*")" = "" ] ||
    die "an installed file has no farblock in its path"
sections=$(readelf --wide --section-headers "$usr/bin/farblock")
# (The section .debug_gdb_scripts, which a release may contain, is allowed.)
! grep -q '\.debug_info\|\.symtab' <<<"$sections" || die "the program still has symbols"
# The simulation's tests put faults into the product with switches. A release must not contain these
# switches.
mapfile -t switches < <(
    grep -rhoP --include='*.rs' 'has_mistake\(\s*"\K[^"]{17,}' "$here/../crates"
)
[ ${#switches[@]} -ge 30 ] || die "the sources have only ${#switches[@]} switches of the simulation"
# A build without optimization keeps the names of switches that it cannot reach, so it must not have
# the simulation's code.
if [ "${release##*/}" = debug ]; then
    for program in farblock libfarblock.so; do
        ! nm --demangle "$release/$program" | grep farblock_reactor::sim:: >/dev/null ||
            die "$program contains the simulation"
    done
    switches=()
fi
for switch in "${switches[@]}"; do
    for program in bin/farblock lib/libfarblock.so; do
        ! grep -qF "$switch" "$usr/$program" || die "$program contains the switch '$switch'"
    done
done
"$usr/bin/farblock" --version >/dev/null
"$usr/bin/farblock" serve --check "$usr/share/doc/farblock/farblock.toml" >/dev/null
[ "$(PKG_CONFIG_PATH=$usr/lib/pkgconfig pkg-config --modversion farblock)" = \
    "$("$usr/bin/farblock" --version | cut -d' ' -f2)" ]

# Ignore two warnings: pages have no date, because builds are reproducible, and clap_mangen writes
# superfluous paragraph macros.
for page in "$usr"/share/man/man1/*.1; do
    complaints=$(mandoc -T lint -W warning "$page" || true)
    ! grep -v 'missing date\|skipping paragraph macro' <<<"$complaints" | grep . ||
        die "mandoc complains about ${page##*/}"
done
mandoc -T utf8 "$usr/share/man/man1/farblock.1" | grep 'farblock-serve(1)' >/dev/null

# systemd checks the units, with the path of this test's program.
mkdir "$work/units"
for unit in "$usr"/lib/systemd/system/farblock*; do
    to=${unit##*/} to=$work/units/${to/@./@data.}
    sed "s#/usr/bin/farblock#$usr/bin/farblock#" "$unit" >"$to"
done
for unit in "$work"/units/*; do
    complaints=$(systemd-analyze verify --man=no "$unit" 2>&1) || die "$unit: $complaints"
    [ -z "$complaints" ] || die "$unit: $complaints"
done
# The exposure level may be at most 2.5 of 10 (systemd's threshold counts tenths): the service must
# not have unnecessary rights.
systemd-analyze security --offline=true --threshold=25 "$work/units/farblock.service" \
    >"$work/security" ||
    die "farblock.service has too many rights: $(cat "$work/security")"

# Test the completions, which query a running target.
PATH=$usr/bin:$PATH
nqn=nqn.2026-11.org.example:disks:one
(exec farblock serve mem:1MiB --listen 127.0.0.1:0 --nqn "$nqn" >"$work/said") &
server=$!
for _ in $(seq 600); do
    ! grep -q '^listening' "$work/said" || break
    kill -0 "$server" || die "farblock serve has ended"
    sleep 0.1
done
grep -q '^listening' "$work/said" || die "farblock serve does not listen"

# in_bash LINE: prints bash's candidates for the end of the line.
in_bash() {
    bash --norc -c '
        . "$1"
        COMP_LINE=$2 COMP_POINT=${#2}
        # bash splits words at colons.
        read -ra COMP_WORDS <<<"${2//:/ : }"
        [[ $2 != *[[:space:]:] ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _farblock farblock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
        printf "%s\n" "${COMPREPLY[@]}"' - "$usr/share/bash-completion/completions/farblock" "$1"
}
in_zsh() {
    zsh -f -c '
        compdef() { :; }
        compadd() { [[ $1 != -a ]] || print -l -- ${(P)2}; }
        . $1
        words=(${(z)2}); [[ $2 != *" " ]] || words+=("")
        CURRENT=$#words
        _farblock' - "$usr/share/zsh/site-functions/_farblock" "$1"
}
in_fish() {
    # shellcheck disable=SC2016 # fish's own
    fish --no-config -c 'source $argv[1]; complete -C $argv[2]' \
        "$usr/share/fish/vendor_completions.d/farblock.fish" "$1" | cut -f1
}
# offered SHELL LINE WANTED: checks that the shell's candidates contain WANTED.
offered() {
    local said
    said=$("in_$1" "$2")
    grep -qxF -- "$3" <<<"$said" || die "$1 does not offer $3 after \"$2\", but: $said"
}
for shell in bash zsh fish; do
    offered "$shell" "farblock ctl resize " "$nqn"
    offered "$shell" "farblock ctl resize $nqn " 1
    offered "$shell" "farblock ctl read-only $nqn 1 " off
done
offered bash "farblock ctl resize nqn.2026-11.org.example:di" disks:one
offered bash "farblock serve --engine " portable
offered bash "farblock serve --bl" --block-size
offered fish "farblock serve --engine " portable
mkdir -p "$FARBLOCK_RUNTIME_DIR"
kill "$server"
wait "$server" || die "farblock serve did not exit with code 0"
server=

"$here/install.sh" --uninstall /usr
left=$(find "$DESTDIR" -not -type d)
[ -z "$left" ] || die "left after uninstall: $left"
echo "install: all files were installed, checked and removed"
