//! What a target gives up when it starts, and what it may open.

use crate::args::ServeArgs;
use crate::error::{Failure, Result, os};
use crate::sandbox::{self, Paths};
use crate::steer;
use farblock_target::TargetConfig;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Gives up what the command line does not keep. It is the first thing that a target does.
pub(super) fn confine(args: &ServeArgs) -> Result<()> {
    if args.sandbox.no_sandbox {
        return Ok(());
    }
    let paths = match &args.sandbox.allow_path[..] {
        [] => None,
        given => Some(paths(args, given)?),
    };
    sandbox::enter(paths.as_ref()).map_err(Failure::Run)?;
    for sentence in sandbox::lacks() {
        tracing::debug!("sandbox: {sentence}");
    }
    Ok(())
}

/// Has the memory of a target with keys in no core dump.
pub(super) fn guard_keys(config: &TargetConfig) {
    let with_keys = config.subsystems.iter().any(|subsystem| !subsystem.keys.is_empty());
    if with_keys || !config.tls_keys.is_empty() {
        sandbox::holds_keys();
    }
}

/// What was allowed, and where the target's own files are.
fn paths(args: &ServeArgs, given: &[PathBuf]) -> Result<Paths> {
    let shared = given.iter().map(|path| {
        std::fs::canonicalize(path).map_err(|error| {
            Failure::usage(format_args!("--allow-path {}: {}", path.display(), os(&error)))
        })
    });
    let shared = shared.collect::<Result<_>>()?;
    let default = steer::sockets().filter(|_| !args.no_control && args.control.is_none());
    if let Some(folder) = &default {
        // What cannot be made is told by whoever needs it.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    let own = [&args.control, &args.persist, &args.spdk_rpc].map(Option::as_ref);
    let own = own.into_iter().flatten().map(|path| folder(path)).chain(default);
    let keys = args.host_key.iter().chain(&args.tls_key).map(|(_, path)| path);
    let read = keys
        .chain(&args.controller_key)
        .chain(&args.ui.ui_token)
        .chain(&args.api.api_tokens)
        .chain(&args.api.https_cert)
        .chain(&args.api.https_key)
        .chain(&args.config);
    let program = std::env::current_exe().ok();
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let read = read.chain(&program).map(|path| folder(path)).chain(credentials);
    Ok(Paths { shared, own: own.collect(), read: read.collect() })
}

/// Where a file is, also one that is replaced.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
