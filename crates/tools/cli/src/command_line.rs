//! Parses the command line, and replaces some of clap's errors with clearer ones, for example for
//! negative numbers.

use crate::args::Cli;
use crate::error::Failure;
use crate::output;
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use std::any::TypeId;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Parses the command line of this process.
///
/// # Errors
/// Returns the exit code. The function has already printed the help text or the error.
pub(crate) fn read() -> Result<Cli, ExitCode> {
    let mut command = with_numbers(Cli::command());
    let read = command.try_get_matches_from_mut(std::env::args_os());
    read.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches))
        .map_err(|error| said(&without_hidden(error, &command).format(&mut command)))
}

/// Makes each argument accept `-3` as its value, except arguments that are file names. The parser
/// of the value then explains the error; otherwise clap would report an unknown option.
fn with_numbers(command: Command) -> Command {
    let mend = |arg: Arg| match takes_text(&arg) {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(mend).mut_subcommands(with_numbers)
}

fn takes_text(arg: &Arg) -> bool {
    let is_name = |parser: &ValueParser| {
        let of = parser.type_id();
        of == TypeId::of::<OsString>() || of == TypeId::of::<PathBuf>()
    };
    let takes = arg.get_action().takes_values() && !arg.is_allow_hyphen_values_set();
    takes && !is_name(arg.get_value_parser())
}

/// Removes hidden commands and options from clap's suggestions.
fn without_hidden(mut error: clap::Error, command: &Command) -> clap::Error {
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        let shown = match error.remove(kind) {
            Some(ContextValue::Strings(mut names)) => {
                names.retain(|name| !is_hidden(command, name));
                Some(names).filter(|names| !names.is_empty()).map(ContextValue::Strings)
            }
            Some(ContextValue::String(name)) if is_hidden(command, &name) => None,
            other => other,
        };
        if let Some(shown) = shown {
            error.insert(kind, shown);
        }
    }
    error
}

/// Whether every command or option of this name, at any depth, is hidden.
fn is_hidden(command: &Command, name: &str) -> bool {
    fn shown(command: &Command, name: &str) -> bool {
        let long = name.trim_start_matches('-');
        let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let mut commands = command.get_subcommands().filter(|one| !one.is_hide_set());
        options.filter_map(Arg::get_long).any(|own| own == long)
            || commands.any(|one| one.get_name() == name || shown(one, name))
    }
    !shown(command, name)
}

/// Prints the help text, the version, or the error.
fn said(error: &clap::Error) -> ExitCode {
    if let Some(value) = below_zero(error) {
        return Failure::usage(format_args!(
            "{value} is negative: use a number, size or time of 0 or more (for a file of this \
             name, write ./{value})"
        ))
        .report();
    }
    if let Some(sentence) = known_otherwise(error) {
        return Failure::Usage(sentence).report();
    }
    let text = error.render().to_string();
    // Ignore the error of a closed pipe: the exit code still reports the parse error.
    let _ = match output::spelled(&text) {
        // clap prints the text in colour.
        Cow::Borrowed(_) => error.print(),
        Cow::Owned(text) if error.use_stderr() => output::write_stderr(&text),
        Cow::Owned(text) => std::io::stdout().write_all(text.as_bytes()),
    };
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Commands of similar programs, each with the farblock command that does the same.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("connect", "attach"),
    ("connect-all", "attach --all"),
    ("cp", "copy"),
    ("disconnect", "detach"),
    ("eject", "detach"),
    ("export", "serve"),
    ("identify", "id"),
    ("info", "id"),
    ("login", "attach"),
    ("logout", "detach"),
    ("ls", "list"),
    ("map", "attach"),
    ("mount", "attach"),
    ("ps", "list"),
    ("share", "serve"),
    ("umount", "detach"),
    ("unmap", "detach"),
    ("unmount", "detach"),
];

/// Returns the error for a command that has another name in farblock. clap itself suggests only
/// names with a similar spelling.
fn known_otherwise(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (_, name) = OTHER_NAMES.iter().find(|(other, _)| other == typed)?;
    Some(format!("there is no command {typed}: use `farblock {name}`"))
}

/// Returns the negative value with a unit, such as `-1GiB`, that clap has parsed as options.
fn below_zero(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_digit = |digit: &str| digit.starts_with(|c: char| c.is_ascii_digit());
    if error.kind() != ErrorKind::UnknownArgument
        || !unknown.strip_prefix('-').is_some_and(is_digit)
    {
        return None;
    }
    let mut given = std::env::args_os().skip(1).filter_map(|arg| arg.into_string().ok());
    given.find(|arg| arg.starts_with(unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_names_of_other_programs_suggest_our_commands() {
        let command = Cli::command();
        for (other, name) in OTHER_NAMES {
            let error = Cli::command().try_get_matches_from(["farblock", other]);
            let sentence = known_otherwise(&error.expect_err("the command has another name"));
            assert!(sentence.is_some_and(|it| it.contains(name)), "{other}");
            let ours = name.split(' ').next().expect("the text has a name");
            assert!(command.find_subcommand(ours).is_some(), "{name}");
        }
    }

    #[test]
    fn suggestions_omit_hidden_commands_and_options() {
        let said = |typed: &[&str]| {
            let error =
                Cli::command().try_get_matches_from(typed).expect_err("the option was accepted");
            without_hidden(error, &Cli::command()).format(&mut Cli::command()).to_string()
        };
        for (typed, hidden) in [
            (&["farblock", "attachmen"][..], "'attachment'"),
            (&["farblock", "serve", "mem:1MiB", "--end-with-inpu"], "--end-with-input'"),
        ] {
            let said = said(typed);
            assert!(said.contains(typed[typed.len() - 1]) && !said.contains(hidden), "{said}");
        }
        let said = said(&["farblock", "benc"]);
        assert!(said.contains("'bench'"), "{said}");
    }

    #[test]
    fn the_command_line_passes_claps_checks() {
        with_numbers(Cli::command()).debug_assert();
    }
}
