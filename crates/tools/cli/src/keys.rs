//! `farblock keys`: secrets for authentication, in the forms that nvme-cli makes and takes.

use crate::args::{KeysArgs, KeysCommand, NewKeyArgs};
use crate::error::{Failure, Result};
use crate::output;
use farblock_host::key_file;
use farblock_secure::{Hash, Secret};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &KeysArgs) -> Result<()> {
    match &args.command {
        KeysCommand::New(args) => new(args),
        KeysCommand::Show { file, secret: true } => show_secret(file),
        KeysCommand::Show { file, .. } => show(file),
        KeysCommand::Check { file } => check(file),
    }
}

fn new(args: &NewKeyArgs) -> Result<()> {
    let secret = generate(args.length, args.hash)?;
    let text = secret.text();
    let Some(path) = &args.output else {
        return output::print(&format!("{}\n", text.as_str()));
    };
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let cannot = |error: &std::io::Error| {
        let shown = path.display();
        Failure::run(match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                format!(
                    "{shown} is there already, and a key in use must not be lost: remove it, \
                         or take another name"
                )
            }
            _ => format!("cannot write {shown}: {}", crate::error::os(error)),
        })
    };
    let mut file = options.open(path).map_err(|error| cannot(&error))?;
    let written = writeln!(file, "{}", text.as_str()).and_then(|()| file.sync_all());
    written.map_err(|error| cannot(&error))
}

fn generate(length: Option<usize>, hash: Option<Hash>) -> Result<Secret> {
    let bytes = length.or(hash.map(Hash::bytes)).unwrap_or(32);
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::run(format_args!("the system gives no random numbers: {error}"))
    })?;
    let mut source = |out: &mut [u8]| out.copy_from_slice(&random[..out.len()]);
    let secret = Secret::generate(bytes, hash, &mut source);
    let secret = secret.map_err(|error| Failure::usage(format_args!("no such secret: {error}")));
    random.fill(0);
    secret
}

/// What the secrets are, without them.
fn show(file: &Path) -> Result<()> {
    for secret in read(file)? {
        let used = match secret.hash() {
            Some(hash) => format!("transformed with {hash} and its owner's name before use"),
            None => "used as it is".to_owned(),
        };
        output::print(&format!("DH-HMAC-CHAP secret of {} bytes, {used}\n", secret.bytes()))?;
    }
    Ok(())
}

/// For what takes the secret itself, as nvme-cli does.
fn show_secret(file: &Path) -> Result<()> {
    let secret = read(file)?.swap_remove(0);
    output::print(&format!("{}\n", secret.text().as_str()))
}

fn check(file: &Path) -> Result<()> {
    read(file).map(drop)
}

fn read(file: &Path) -> Result<Vec<Secret>> {
    key_file::read(file).map_err(Failure::Run)
}
