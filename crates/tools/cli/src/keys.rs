//! `farblock keys`: makes and shows secrets for authentication and keys for TLS, in nvme-cli's
//! formats.

mod pair;

use crate::args::{DeriveArgs, KeysArgs, KeysCommand, NewKeyArgs};
use crate::error::{Failure, Result};
use crate::output;
use farblock_host::key_file;
use farblock_secure::{Hash, Secret, TlsKey};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use zeroize::Zeroizing;

pub(crate) fn run(args: &KeysArgs) -> Result<()> {
    match &args.command {
        KeysCommand::New(args) => new(args),
        KeysCommand::Show { file, secret: true } => show_secret(file),
        KeysCommand::Show { file, .. } => show(file),
        KeysCommand::Check { file } => check(file),
        KeysCommand::Derive(args) => derive(args),
        KeysCommand::Pair(args) => pair::pair(args),
    }
}

fn new(args: &NewKeyArgs) -> Result<()> {
    let text = made(args.tls, args.length, args.hash)?;
    match &args.output {
        Some(path) => write_new(path, &text, NAMED),
        None => output::print(&format!("{}\n", text.as_str())),
    }
}

/// Makes a new key, and returns its text.
fn made(tls: bool, length: Option<usize>, hash: Option<Hash>) -> Result<Zeroizing<String>> {
    Ok(match tls {
        true => generate_tls(hash.unwrap_or(Hash::Sha256))?.text(),
        false => generate(length, hash)?.text(),
    })
}

/// Advice if the file that the user named exists already.
const NAMED: &str = "remove it, or name another file";

/// Makes a file that only its owner can read. If the file exists, the error contains `advice`.
fn write_new(path: &Path, text: &str, advice: &str) -> Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let cannot = |error: &std::io::Error| {
        let shown = path.display();
        Failure::run(match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                format!("{shown} exists already, and its key may be in use: {advice}")
            }
            _ => format!("cannot write {shown}: {}", crate::error::os(error)),
        })
    };
    let mut file = options.open(path).map_err(|error| cannot(&error))?;
    let written = writeln!(file, "{text}").and_then(|()| file.sync_all());
    written.map_err(|error| cannot(&error))
}

fn generate(length: Option<usize>, hash: Option<Hash>) -> Result<Secret> {
    let bytes = length.or(hash.map(Hash::bytes)).unwrap_or(32);
    let random = random(bytes)?;
    let secret = Secret::generate(bytes, hash, &mut |out: &mut [u8]| take(&random, out));
    secret.map_err(|error| Failure::usage(format_args!("cannot make this secret: {error}")))
}

fn generate_tls(hash: Hash) -> Result<TlsKey> {
    let random = random(hash.bytes())?;
    let key = TlsKey::generate(hash, &mut |out: &mut [u8]| take(&random, out));
    key.map_err(|_| Failure::usage("keys for TLS need sha256 or sha384"))
}

fn random(bytes: usize) -> Result<Zeroizing<Vec<u8>>> {
    #[cfg(target_os = "linux")]
    crate::sandbox::holds_keys();
    let mut random = Zeroizing::new(vec![0; bytes]);
    getrandom::fill(&mut random).map_err(|error| {
        Failure::run(format_args!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(random)
}

fn take(random: &[u8], out: &mut [u8]) {
    out.copy_from_slice(&random[..out.len()]);
}

/// The contents of a key file.
enum Keys {
    Secrets(Vec<Secret>),
    Tls(Vec<TlsKey>),
}

/// Prints a description of the keys, without the keys themselves.
fn show(file: &Path) -> Result<()> {
    match read(file)? {
        Keys::Secrets(secrets) => secrets.iter().try_for_each(show_one),
        Keys::Tls(keys) => keys.iter().try_for_each(show_tls),
    }
}

fn show_one(secret: &Secret) -> Result<()> {
    let used = match secret.hash() {
        Some(hash) => format!("transformed with {hash} and its owner's name before use"),
        None => "used without a transformation".to_owned(),
    };
    output::print(&format!(
        "DH-HMAC-CHAP secret of {} bytes, {used}, fingerprint {}\n",
        secret.bytes(),
        secret.fingerprint()
    ))
}

fn show_tls(key: &TlsKey) -> Result<()> {
    let retained =
        if key.is_retained() { ", used without a transformation (retained)" } else { "" };
    output::print(&format!("TLS key for {}{retained}\n", suite(key)))
}

fn suite(key: &TlsKey) -> &'static str {
    match key.suite() {
        Hash::Sha256 => "TLS_AES_128_GCM_SHA256",
        _ => "TLS_AES_256_GCM_SHA384",
    }
}

/// Prints the key itself, for programs such as nvme-cli that take it as an argument.
fn show_secret(file: &Path) -> Result<()> {
    let text = match read(file)? {
        Keys::Secrets(mut secrets) => secrets.swap_remove(0).text(),
        Keys::Tls(mut keys) => keys.swap_remove(0).text(),
    };
    output::print(&format!("{}\n", text.as_str()))
}

fn check(file: &Path) -> Result<()> {
    read(file).map(drop)
}

fn derive(args: &DeriveArgs) -> Result<()> {
    for key in key_file::read_tls(&args.file).map_err(Failure::Run)? {
        let psks = key.psks(&args.host, &args.subsystem);
        if psks.is_empty() {
            return Err(Failure::usage("the two NQNs are too long for a TLS identity"));
        }
        for psk in psks {
            output::print(&format!("{}  ({})\n", psk.identity, psk.derivation))?;
        }
    }
    Ok(())
}

/// Reads secrets or TLS keys from a file. If the file contains neither, the error is about the kind
/// that the file resembles.
fn read(file: &Path) -> Result<Keys> {
    let tls = match key_file::read_tls(file) {
        Ok(keys) => return Ok(Keys::Tls(keys)),
        Err(error) => error,
    };
    let other_kind = farblock_secure::TlsKeyError::Prefix.to_string();
    match key_file::read(file) {
        Ok(secrets) => Ok(Keys::Secrets(secrets)),
        Err(error) if tls.contains(&other_kind) => Err(Failure::Run(error)),
        Err(_) => Err(Failure::Run(tls)),
    }
}
