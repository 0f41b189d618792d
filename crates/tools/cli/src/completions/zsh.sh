# Complete the names of this machine first.
_farblock() {
    local -a known
    known=(${(f)"$($words[1] completions --known "${(@Q)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#known )) && [[ $words[CURRENT] != -* ]]; then
        compadd -a known
    else
        _farblock_options "$@"
    fi
}

