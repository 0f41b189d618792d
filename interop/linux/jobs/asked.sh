# shellcheck shell=bash
# Sourced by jobs. Runs the commands in /host/N.cmd, until a command is `exit`. Writes a command's
# output to /host/N.out, and its exit code to /host/N.done.

do_what_is_asked() {
    local number command code
    for ((number = 1; ; number++)); do
        until [ -e /host/$number.cmd ]; do sleep 0.1; done
        command=$(cat /host/$number.cmd)
        code=0
        bash -c "$command" >/host/$number.out 2>&1 || code=$?
        echo $code >/host/part
        mv /host/part /host/$number.done
        [ "$command" != exit ] || break
    done
}
