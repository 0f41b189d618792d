//! `farblock serve --api`: who may use the interface on TCP.

use crate::args::ApiArgs;
use crate::error::{Failure, Result};
use farblock_admin::{Remote, Tokens};
use farblock_host::key_file;

/// What the options ask for.
pub(super) fn wanted(args: &ApiArgs) -> Result<Option<Remote>> {
    let (Some(address), Some(file)) = (args.api, &args.api_tokens) else { return Ok(None) };
    if !address.ip().to_canonical().is_loopback() {
        return Err(Failure::usage(format_args!(
            "--api {address} can be reached from other machines, from where tokens would come \
             unencrypted: take --api 127.0.0.1:{}, and a tunnel (ssh -L) or a proxy with TLS \
             before it",
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
