# Of a connection that the kernel is refused nvme-cli says only that there was an error: what it is
# refused for stands in the kernel's messages. Sourced by jobs, behind /lib.sh.
# shellcheck shell=bash

# refused_for TEXT PATTERN COMMAND...: the command must fail, and it or the kernel must say meanwhile
# something that matches PATTERN.
refused_for() {
    local text=$1 pattern=$2 output
    shift 2
    dmesg -c >/dev/null
    if output=$("$@" 2>&1); then fail "$text: '$*' succeeded: $output"; fi
    output+=$(printf '\n' && dmesg)
    [[ $output =~ $pattern ]] || fail "$text: '$*' failed with '$output', expected '$pattern'"
    ok "$text is refused: ${BASH_REMATCH[0]}"
}
