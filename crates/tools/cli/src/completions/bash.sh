
# Complete the names of this machine first. Names contain colons, at which bash splits words. So
# this function splits the line itself, and cuts each candidate after the word's last colon.
_farblock() {
    local line=${COMP_LINE:0:COMP_POINT} words known name cut=""
    IFS=$' \t\n' read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    local last=${words[${#words[@]} - 1]}
    mapfile -t known < <("$1" completions --known "${words[@]:1}" 2>/dev/null)
    if [[ ${#known[@]} -eq 0 || $last == -* ]]; then
        _farblock_options "$@"
        return
    fi
    [[ $COMP_WORDBREAKS != *:* || $last != *:* ]] || cut=${last%"${last##*:}"}
    COMPREPLY=()
    for name in "${known[@]}"; do
        [[ $name != "$last"* ]] || COMPREPLY+=("${name:${#cut}}")
    done
}
