//! `farblock`: share disks over NVMe/TCP and use them from anywhere, entirely in user space.
//!
//! The binary is thin: it reads the command line ([`args`]), calls the crates below it, and prints
//! tables or JSON. Its own contract is with people and scripts:
//! - Results go to the standard output, everything else (progress, notes, logs, errors) to the
//!   standard error.
//! - An error is one sentence that says what is wrong and what to do. The exit code is 2 when the
//!   command line or a configuration makes no sense, 1 when something failed, 130 after a signal.
//! - A closed pipe is an ordinary end; no peer, file or option causes a panic.

mod args;
mod attach;
mod bench;
mod completions;
mod configuration;
mod discover;
mod error;
mod identify;
mod keys;
mod logging;
mod machine;
mod output;
mod remote;
mod replace;
mod serve;
mod signals;
#[cfg(unix)]
mod steer;
mod table;
mod transfer;
mod values;

use args::{Cli, Command};
use clap::Parser;
use error::{Failure, Result};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let runs_for_long = match &cli.command {
        Command::Serve(_) | Command::Attachment(_) => true,
        Command::Attach(args) => args.foreground,
        _ => false,
    };
    let file = match &cli.command {
        Command::Service(args) => attach::service::log(args),
        _ => None,
    };
    logging::start(cli.global.verbose, cli.global.quiet, runs_for_long, file);
    signals::survive_file_size_limit();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints help, the version, or what is wrong with the command line.
fn usage(error: &clap::Error) -> ExitCode {
    // If nobody reads it, there is the exit code.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn run(cli: Cli) -> Result<()> {
    use Command::{Completions, Detach, Keys, Service};
    let global = &cli.global;
    if cli.json
        && let Detach(_) | Completions(_) | Keys(_) | Service(_) = cli.command
    {
        return Err(Failure::usage("this command has no --json: its exit code says it all"));
    }
    match cli.command {
        Command::Serve(mut args) => {
            args.json |= cli.json;
            serve::run(&args, global)
        }
        #[cfg(unix)]
        Command::Status(mut args) => {
            args.json |= cli.json;
            steer::status(&args)
        }
        #[cfg(unix)]
        Command::Reload(args) => steer::reload(&args),
        #[cfg(unix)]
        Command::Config(args) => steer::config(&args),
        #[cfg(unix)]
        Command::Ctl(args) => steer::ctl(&args),
        Command::Discover(mut args) => {
            args.json |= cli.json;
            discover::run(&args, global)
        }
        Command::Id(mut args) => {
            args.json |= cli.json;
            identify::run(&args, global)
        }
        Command::Read(mut args) => {
            args.json |= cli.json;
            transfer::read(&args, global)
        }
        Command::Write(mut args) => {
            args.json |= cli.json;
            transfer::write(&args, global)
        }
        Command::Copy(mut args) => {
            args.json |= cli.json;
            transfer::copy(&args, global)
        }
        Command::Attach(mut args) => {
            args.json |= cli.json;
            attach::attach(&args, global)
        }
        Command::List(mut args) => {
            args.json |= cli.json;
            attach::list(&args)
        }
        Command::Detach(args) => attach::detach(&args),
        Command::Attachment(args) => attach::part(args, global),
        Command::Service(args) => attach::service::run(&args, global),
        Command::Keys(args) => keys::run(&args),
        Command::Completions(args) => completions::run(args.shell),
        Command::Bench(mut args) => {
            if cli.json && args.json.is_none() {
                args.json = Some("-".into());
            }
            bench::run(&args, global)
        }
    }
}
