//! `farblock completions`: clap's scripts, with the names of what is attached where one is wanted.

use crate::args::Cli;
use crate::error::Result;
use crate::output;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;

/// Prints the names, each on a line.
const NAMES: &str = "list --names 2>/dev/null";

/// Prints a script.
pub(crate) fn run(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "farblock", &mut script);
    output::print(&with_names(shell, &String::from_utf8_lossy(&script)))
}

/// The command line, where nothing is followed by files but what names them.
fn command() -> Command {
    fn without_files(command: Command) -> Command {
        command.mut_args(hint).mut_subcommands(without_files)
    }
    fn hint(arg: Arg) -> Arg {
        match arg.get_value_hint() {
            ValueHint::Unknown if arg.get_action().takes_values() => {
                arg.value_hint(ValueHint::Other)
            }
            _ => arg,
        }
    }
    without_files(Cli::command())
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
            clap_complete::generate(shell, &mut command(), "farblock", &mut script);
            let script = with_names(shell, &String::from_utf8_lossy(&script));
            assert_eq!(script.matches(NAMES).count(), 1, "{shell}");
        }
    }

    #[test]
    fn options_are_followed_by_their_values_and_not_by_files() {
        fn check(command: &Command) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let (name, values) = (arg.get_id().as_str(), arg.get_possible_values());
                match name {
                    "engine" | "rw" | "block_size" | "as" | "iopolicy" | "shell" => {
                        assert!(values.len() > 1, "{name} has no values to offer");
                        // What is offered is accepted.
                        let parser = arg.get_value_parser().clone();
                        let option = Arg::new("value").long("value").value_parser(parser);
                        let command = Command::new("test").arg(option);
                        for value in values {
                            let args = ["test", "--value", value.get_name()];
                            let parsed = command.clone().try_get_matches_from(args);
                            assert!(parsed.is_ok(), "{name} {}", value.get_name());
                        }
                    }
                    _ => assert_ne!(arg.get_value_hint(), ValueHint::Unknown, "{name}"),
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut command(), "farblock", &mut script);
        let script = String::from_utf8_lossy(&script);
        assert!(script.contains(r#"compgen -W "read write randread"#), "{script}");
    }
}
