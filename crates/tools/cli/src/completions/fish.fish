
# Complete the names of this machine.
function __fish_farblock_known
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completions --known $words[2..-1] 2>/dev/null
end
complete -c farblock -n "__fish_farblock_using_subcommand detach" -f -a "(__fish_farblock_known)"
complete -c farblock -n "__fish_farblock_using_subcommand authenticate" -f -a "(__fish_farblock_known)"
complete -c farblock -n "__fish_farblock_using_subcommand ctl" -k -a "(__fish_farblock_known)"
complete -c farblock -n "__fish_farblock_using_subcommand doctor" -a "(__fish_farblock_known)"
