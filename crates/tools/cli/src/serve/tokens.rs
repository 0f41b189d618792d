//! `farblock serve --api`: who may use the interface on TCP, and by which certificate it is known.

use crate::args::ApiArgs;
use crate::error::{Failure, Result, os};
use farblock_admin::{Certificate, Pem, Remote, Tokens, Trust};
use farblock_host::key_file;
use std::io::Read;
use std::path::Path;

/// What the options ask for.
pub(super) fn wanted(args: &ApiArgs) -> Result<Option<Remote>> {
    let (Some(address), Some(file)) = (args.api, &args.api_tokens) else { return Ok(None) };
    if !address.ip().to_canonical().is_loopback() && args.https_cert.is_none() {
        return Err(Failure::usage(format_args!(
            "--api {address} can be reached from other machines, from where tokens would come \
             unencrypted: give it a certificate (--https-cert, --https-key), or take --api \
             127.0.0.1:{} and a tunnel (ssh -L)",
            address.port()
        )));
    }
    let text = key_file::text(file).map_err(Failure::Run)?;
    let tokens = Tokens::parse(&text).map_err(|problem| {
        Failure::run(format_args!(
            "{} holds no tokens: {problem} (openssl rand -hex 16 makes a secret)",
            file.display()
        ))
    })?;
    Ok(Some(Remote { address, tokens }))
}

/// The certificate of what is on TCP.
pub(super) fn certificate(args: &ApiArgs, has_ui: bool) -> Result<Option<Certificate>> {
    let (Some(file), Some(key)) = (&args.https_cert, &args.https_key) else { return Ok(None) };
    if args.api.is_none() && !has_ui {
        return Err(Failure::usage(
            "--https-cert is for --api and --ui, and neither is asked for: name one, or leave it \
             out",
        ));
    }
    let (file, key) = (file.clone(), key.clone());
    let shown = format!("{} with {}", file.display(), key.display());
    let read = move || {
        let certificates = read(&file)?;
        let key = key_file::text(&key)?.as_bytes().to_vec();
        Ok(Pem { certificates, key })
    };
    Certificate::new(Box::new(read))
        .map(Some)
        .map_err(|problem| Failure::run(format_args!("the certificate {shown}: {problem}")))
}

/// More than any certificates have that are sent to clients.
const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// A file with certificates.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|it| it.take(CERTIFICATES_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {}: {}", path.display(), os(&error)))?;
    Ok(bytes)
}

/// Whose certificates are believed, as a file says.
pub(crate) fn trust(path: &Path) -> Result<Trust> {
    let trust = read(path).and_then(|pem| {
        Trust::new(&pem).map_err(|problem| format!("{}: {problem}", path.display()))
    });
    trust.map_err(Failure::Run)
}
