//! Connects to the subsystem or namespace of a URL. Errors say what the user should do next.

use crate::args::{ConnectionArgs, Global};
use crate::error::{Failure, Result};
use crate::shell::quoted;
use farblock_host::disk::{Disk, DiskOptions};
use farblock_host::url::Url;
use farblock_host::{Controller, Error, Options, RemoteNamespace, TcpOptions};
use farblock_proto::host::{ConnectError, InfoError, NamespaceInfo};

/// Returns the connection options of the command line, without the options in a URL.
pub fn options(global: &Global, args: &ConnectionArgs) -> Options {
    Options {
        engine: global.engine,
        dhchap_secret: args.dhchap_secret.clone(),
        dhchap_ctrl_secret: args.dhchap_ctrl_secret.clone(),
        dhchap_hashes: args.dhchap_hashes.clone(),
        dhchap_dhgroups: args.dhchap_dhgroups.clone(),
        tcp: TcpOptions {
            header_digest: args.header_digest,
            data_digest: args.data_digest,
            tls_key: args.tls_key.clone(),
            concatenate: args.concat,
        },
        hostnqn: args.host.hostnqn.clone(),
        hostid: args.host.hostid,
        ..Options::default()
    }
}

/// Refuses a URL whose host identity contradicts the options.
pub fn one_host(url: &Url, options: &Options) -> std::result::Result<(), String> {
    let name = (&options.hostnqn, &url.hostnqn);
    let id = (options.hostid.map(|id| id.to_string()), url.hostid.map(|id| id.to_string()));
    for (option, pair) in [("hostnqn", name), ("hostid", (&id.0, &id.1))] {
        if let (Some(own), Some(there)) = pair
            && own != there
        {
            return Err(format!(
                "{option} is {own}, but {there} in the URL {}: keep one of them",
                url.without_keys()
            ));
        }
    }
    Ok(())
}

/// Connects to the subsystem of a URL.
pub fn connect(url: &Url, options: &Options) -> Result<Controller> {
    one_host(url, options).map_err(Failure::Usage)?;
    if url.subsystem.is_none() {
        return Err(Failure::usage(format_args!(
            "{url} names no subsystem: write {url}/NQN; `farblock discover {}` lists subsystems",
            url.address()
        )));
    }
    Controller::connect_url(url, options).map_err(|error| explain(&error, url, options))
}

/// Connects to the namespace of a URL. The URL may leave it out if the subsystem has only one.
pub fn open(url: &Url, options: &Options) -> Result<RemoteNamespace> {
    let controller = connect(url, options)?;
    let nsid = match url.namespace {
        Some(nsid) => nsid,
        None => only_namespace(&controller, url)?,
    };
    namespace(&controller, url, options, nsid)
}

/// Connects to the namespace of a URL, as a disk that reconnects.
pub fn open_disk(url: &Url, options: &DiskOptions) -> Result<(Disk, NamespaceInfo)> {
    open_disk_by(url, options, Disk::connect)
}

/// Like [`open_disk`], but `connect` connects the disk.
pub fn open_disk_by(
    url: &Url,
    options: &DiskOptions,
    connect: impl FnOnce(&[Url], &DiskOptions) -> std::result::Result<Disk, Error>,
) -> Result<(Disk, NamespaceInfo)> {
    // First connect without a disk: the errors of `open` list the existing namespaces.
    let info = open(url, &options.connection)?.info().clone();
    let url = Url { namespace: Some(info.nsid), ..url.clone() };
    let disk = connect(std::slice::from_ref(&url), options);
    Ok((disk.map_err(|error| explain(&error, &url, &options.connection))?, info))
}

/// Returns the only namespace ID of the subsystem, for a URL that names none.
pub fn resolve(url: &Url, options: &Options) -> Result<u32> {
    only_namespace(&connect(url, options)?, url)
}

fn only_namespace(controller: &Controller, url: &Url) -> Result<u32> {
    let ids = controller.namespace_ids()?;
    match ids.as_slice() {
        [only] => Ok(*only),
        [] => Err(Failure::run(format_args!("the subsystem of {url} has no namespaces"))),
        several => Err(Failure::usage(format_args!(
            "{url} has several namespaces ({}): choose one, as in '{url}?ns={}'",
            list(several),
            several[0]
        ))),
    }
}

/// Opens a namespace of a connected subsystem.
pub fn namespace(
    controller: &Controller,
    url: &Url,
    options: &Options,
    nsid: u32,
) -> Result<RemoteNamespace> {
    controller.namespace(nsid).map_err(|error| match &error {
        Error::Answer { reason: InfoError::NoSuchNamespace, .. } | Error::Command { .. } => {
            match controller.namespace_ids() {
                Ok(ids) if !ids.contains(&nsid) => Failure::run(format_args!(
                    "there is no namespace {nsid} in {}: it has {}",
                    controller.subsystem(),
                    if ids.is_empty() { "none".to_owned() } else { list(&ids) }
                )),
                _ => explain(&error, url, options),
            }
        }
        _ => explain(&error, url, options),
    })
}

/// Converts an error of the host to a failure, with advice.
pub fn explain(error: &Error, url: &Url, options: &Options) -> Failure {
    let hint = match error {
        Error::Connect { reason: ConnectError::NoSuchSubsystem, .. } => {
            format!("; `farblock discover {}` lists its subsystems", url.address())
        }
        Error::Connect { reason: ConnectError::HostNotAllowed, .. } => {
            let (options, nqn) = (options.with_url(url), url.subsystem.as_deref());
            let host = options.identity().nqn;
            let key = match options.tcp.tls_key {
                None => ", or give --tls-key if the target has a TLS key of this host",
                Some(_) => "",
            };
            let (let_in, url) = (let_in(nqn.unwrap_or("NQN"), &host), url.without_keys());
            format!(
                " (this host is {host}); {let_in}{key}; `farblock doctor '{url}'` diagnoses more"
            )
        }
        Error::Connect { reason: ConnectError::Refused, .. } => {
            "; is the target running, and is the port right?".to_owned()
        }
        _ => String::new(),
    };
    Failure::run(format_args!("{error}{hint}"))
}

/// Returns advice on how to allow this host at the subsystem.
#[must_use]
pub fn let_in(subsystem: &str, host: &str) -> String {
    let (subsystem, host) = (quoted(subsystem), quoted(host));
    format!(
        "allow it there (`farblock ctl allow-host {subsystem} {host}`, or --allow-host or \
         allowed_hosts)"
    )
}

/// Formats namespace IDs, and shortens a long list.
fn list(ids: &[u32]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<String> = ids.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if ids.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chosen_by_a_peer_is_quoted_for_the_shell() {
        let (host, bad) = ("nqn.2026-11.org.example:host", "n';id;'");
        let word = r"'n'\'';id;'\'''";
        let advice = let_in(bad, host);
        assert!(advice.contains(&format!("allow-host {word} {host}`")), "{advice}");
        let advice = let_in(host, bad);
        assert!(advice.contains(&format!("allow-host {host} {word}`")), "{advice}");
    }

    #[test]
    fn a_long_list_of_namespaces_is_shortened() {
        assert_eq!(list(&[1, 2]), "1, 2");
        assert!(list(&(1..100).collect::<Vec<_>>()).ends_with("10, …"));
    }
}
