//! `farblock serve --api`: the tokens and the certificate of the management API on TCP.

use crate::args::{ApiArgs, ServeArgs};
use crate::error::{Failure, Result, os};
use farblock_admin::{Certificate, Pem, Remote, Tokens};
use farblock_admin_client::Trust;
use farblock_host::key_file;
use farblock_host::readable::Readable;
use std::io::Read;
use std::path::Path;

/// Returns the address, tokens and certificate of the management API that the options request.
pub(super) fn wanted(args: &ApiArgs) -> Result<Option<Remote>> {
    let (Some(address), Some(file)) = (args.api, &args.api_tokens) else { return Ok(None) };
    if !address.ip().to_canonical().is_loopback() && args.https_cert.is_none() {
        return Err(Failure::usage(format_args!(
            "--api {address} accepts connections from other machines, whose tokens would cross the \
             network unencrypted: use a certificate (--https-cert, --https-key), or --api \
             127.0.0.1:{} and a tunnel (ssh -L)",
            address.port()
        )));
    }
    let text = key_file::text(file).map_err(Failure::Run)?;
    let tokens = Tokens::parse(&text).map_err(|problem| {
        Failure::run(format_args!(
            "{} has no valid tokens: {problem} (openssl rand -hex 16 makes a secret)",
            file.display()
        ))
    })?;
    Ok(Some(Remote { address, tokens }))
}

pub(super) fn certificate(args: &ServeArgs) -> Result<Option<Certificate>> {
    let api = &args.api;
    let is_used = api.api.is_some() || args.ui.ui.is_some() || args.metrics.is_some();
    if api.https_cert.is_some() && !is_used {
        return Err(Failure::usage(
            "--https-cert needs --api, --ui or --metrics: add one of them, or leave --https-cert \
             out",
        ));
    }
    certified(api.https_cert.as_deref(), api.https_key.as_deref())
}

/// Reads a certificate and its key. The result also contains the function that reads them again
/// after a renewal.
pub fn certified(file: Option<&Path>, key: Option<&Path>) -> Result<Option<Certificate>> {
    let (Some(file), Some(key)) = (file, key) else { return Ok(None) };
    let (file, key) = (file.to_owned(), key.to_owned());
    let shown = format!("{} with {}", file.display(), key.display());
    let read = move || {
        // A pipe delivers its data only once, and opening it again blocks.
        if file.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(
                "farblock reads it again after a renewal, so it must be a regular file".to_owned()
            );
        }
        let certificates = read(&file)?;
        let key = key_file::text(&key)?.as_bytes().to_vec();
        Ok(Pem { certificates, key })
    };
    Certificate::new(Box::new(read))
        .map(Some)
        .map_err(|problem| Failure::run(format_args!("the certificate {shown}: {problem}")))
}

/// The size limit of a certificate file in bytes.
const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// Reads a file with certificates.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = Readable::open(path);
    let read = file.and_then(|it| it.take(CERTIFICATES_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {}: {}", path.display(), os(&error)))?;
    Ok(bytes)
}

/// Returns the CA or target certificates to trust, from a file.
pub fn trust(path: &Path) -> Result<Trust> {
    let trust = read(path).and_then(|pem| {
        Trust::new(&pem).map_err(|problem| format!("{}: {problem}", path.display()))
    });
    trust.map_err(Failure::Run)
}
