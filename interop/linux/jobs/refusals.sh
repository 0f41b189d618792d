# Sourced by jobs, after /lib.sh. If a target refuses the kernel's connection, nvme-cli prints only
# that an error occurred. The kernel's messages have the reason.
# shellcheck shell=bash

# refused_for TEXT PATTERN COMMAND...: the command must fail, and its output or the kernel's
# messages during it must match PATTERN.
refused_for() {
    local text=$1 pattern=$2 output
    shift 2
    dmesg -c >/dev/null
    if output=$("$@" 2>&1); then fail "$text: '$*' succeeded: $output"; fi
    output+=$(printf '\n' && dmesg)
    [[ $output =~ $pattern ]] || fail "$text: '$*' failed with '$output', expected '$pattern'"
    ok "$text is refused: ${BASH_REMATCH[0]}"
}
