//! `farblock completions`: prints clap's completion scripts, and writes the manual pages. The
//! scripts call this program for the names of this machine's attachments and targets.

mod known;
mod manuals;

use crate::args::{Cli, CompletionsArgs};
use crate::error::Result;
use crate::output;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;

/// Prints a completion script, or the names for a script, or writes the manual pages.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    if let Some(folder) = &args.manuals {
        return manuals::write(folder);
    }
    let Some(shell) = args.shell else {
        let names = known::known(args.known.as_deref().unwrap_or_default(), &Cli::command());
        return output::print_exact(
            &names.iter().map(|name| format!("{name}\n")).collect::<String>(),
        );
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&command()), "farblock", &mut script);
    output::print_exact(&with_names(shell, &String::from_utf8_lossy(&script)))
}

/// Returns the command line, in which only options for file names complete file names.
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

/// Returns a copy without hidden commands and options.
fn visible(command: &Command) -> Command {
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set()).map(visible);
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help");
    let plain = |arg: &Arg| {
        let mut plain = Arg::new(arg.get_id().clone()).action(arg.get_action().clone());
        plain = plain.value_hint(arg.get_value_hint()).global(arg.is_global_set());
        if let Some(help) = arg.get_help() {
            plain = plain.help(help.clone());
        }
        if arg.get_action().takes_values() {
            plain = plain.value_parser(arg.get_value_parser().clone());
            plain = plain.hide_possible_values(arg.is_hide_possible_values_set());
        }
        plain = arg.get_short().map_or(plain.clone(), |short| plain.short(short));
        arg.get_long().map_or(plain.clone(), |long| plain.long(kept(long)))
    };
    let mut shown = Command::new(kept(command.get_name()));
    shown = shown.about(command.get_about().cloned().unwrap_or_default());
    if let Some(version) = command.get_version() {
        shown = shown.version(kept(version));
    }
    shown.args(command.get_arguments().filter(is_shown).map(plain)).subcommands(commands)
}

/// Leaks the text: the process ends once it has printed the script.
fn kept(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Extends the script so that it calls `farblock completions --known` for this machine's names. A
/// script of an unexpected form remains unchanged.
fn with_names(shell: Shell, script: &str) -> String {
    const BEGIN: &str = "_farblock() {";
    const OPTIONS: &str = "_farblock_options() {";
    match shell {
        Shell::Bash if script.contains(BEGIN) => {
            let script = script.replacen(BEGIN, OPTIONS, 1);
            let ends = "\nif [[ \"${BASH_VERSINFO";
            let end = script.rfind(ends).unwrap_or(script.len());
            format!("{}{}{}", &script[..end], include_str!("bash.sh"), &script[end..])
        }
        Shell::Zsh if script.contains(BEGIN) => {
            let script = script.replacen(BEGIN, OPTIONS, 1);
            let end = script.rfind("if [ \"$funcstack[1]\"").unwrap_or(script.len());
            format!("{}{}{}", &script[..end], include_str!("zsh.sh"), &script[end..])
        }
        Shell::Fish => format!("{script}{}", include_str!("fish.fish")),
        _ => script.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_scripts_ask_farblock_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(&command()), "farblock", &mut script);
            let script = with_names(shell, &String::from_utf8_lossy(&script));
            assert_eq!(script.matches("completions --known").count(), 1, "{shell}");
            let hidden = ["__attachment", "subcommand attachment", "--manuals"];
            assert!(hidden.iter().all(|it| !script.contains(it)), "{shell} offers hidden commands");
            let renamed = script.matches("_farblock_options() {").count();
            assert_eq!(renamed, usize::from(shell != Shell::Fish), "{shell}");
        }
    }

    #[test]
    fn options_complete_their_values_and_not_file_names() {
        fn check(command: &Command) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let (name, values) = (arg.get_id().as_str(), arg.get_possible_values());
                match name {
                    "engine" | "rw" | "block_size" | "as" | "iopolicy" | "shell" => {
                        assert!(values.len() > 1, "{name} has no values to offer");
                        // The option's parser must accept every value that the completion offers.
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
