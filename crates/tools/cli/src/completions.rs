//! `farblock completions`: clap's scripts, with the names of what is attached where one is wanted.

use crate::args::Cli;
use crate::error::Result;
use crate::output;
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the names, each on a line.
const NAMES: &str = "list --names 2>/dev/null";

/// Prints a script.
pub(crate) fn run(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "farblock", &mut script);
    output::print(&with_names(shell, &String::from_utf8_lossy(&script)))
}

/// Has `farblock detach` be followed by names. Where the script is not as it is known here, it
/// stays as it is.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            let options = "farblock__subcmd__detach)\n            opts=\"";
            // The shell calls the function with the command's name.
            script.replacen(options, &format!("{options}$(\"$1\" {NAMES}) "), 1)
        }
        Shell::Zsh => script
            .split_inclusive('\n')
            .map(|line| match line.strip_prefix("'*::names -- ") {
                Some(_) => format!("'*::name:{{compadd -- $(farblock {NAMES})}}' \\\n"),
                None => line.to_owned(),
            })
            .collect(),
        Shell::Fish => {
            let wanted = "__fish_farblock_using_subcommand detach";
            format!("{script}complete -c farblock -n \"{wanted}\" -f -a \"(farblock {NAMES})\"\n")
        }
        _ => script.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_is_followed_by_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "farblock", &mut script);
            let script = with_names(shell, &String::from_utf8_lossy(&script));
            assert_eq!(script.matches(NAMES).count(), 1, "{shell}");
        }
    }
}
