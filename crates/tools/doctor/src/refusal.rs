//! Advice for each reason why a connection fails.

use super::finding::Finding;
use super::rdma;
use crate::remote;
use farblock_host::identity::HostIdentity;
use farblock_host::url::{Carriage, Url};
use farblock_host::{Error, Options};
use farblock_proto::host::ConnectError;
use farblock_proto::tcp::TcpRefusal;

/// The maximum number of the target's subsystems that the advice names.
const NAMED: usize = 5;

/// Advice if a step fails after small packets have arrived: the network may drop large packets.
pub(super) const LARGE_PACKETS: &str = "check the target's log; if it shows no error, the network \
    may drop large packets (path MTU): try `ping -M do -s 1472 HOST`, and set the same MTU on both \
    machines and on all devices between them";

/// Returns the finding for a failed connection.
pub(super) fn finding(error: &Error, url: &Url, options: &Options) -> Finding {
    match error {
        Error::Connect { reason, .. } => {
            let (check, advice) = advice(reason, url, options);
            Finding::problem(check, reason.to_string(), advice)
        }
        Error::Lost(_) => Finding::problem("controller", error.to_string(), LARGE_PACKETS),
        Error::System(_) => Finding::problem(
            "this machine",
            error.to_string(),
            "run `farblock doctor` without an argument, which checks this machine",
        ),
        _ => Finding::problem("controller", error.to_string(), "correct the command line"),
    }
}

/// Returns the failed step, and advice.
fn advice(reason: &ConnectError, url: &Url, options: &Options) -> (&'static str, String) {
    use ConnectError as E;
    let (check, advice) = match reason {
        E::HostNotAllowed | E::NoSuchSubsystem => return names(reason, url, options),
        E::IdentifierNotAllowed => return ("host", identifier(&options.with_url(url))),
        E::TimedOut { .. } | E::Closed { .. } => ("connect", LARGE_PACKETS),
        E::ControllerBusy | E::NoQueueLeft { .. } => (
            "connect",
            "disconnect other hosts, or raise the target's limits; the target frees the resources \
             of a dead host after the host's keep alive timeout",
        ),
        E::RestartDiscovery => {
            ("connect", "run `farblock discover` again, and use a subsystem in its list")
        }
        E::NotReady { .. } | E::ControllerFatal => {
            ("controller", "check the target's log, and restart the target")
        }
        E::Rdma(sentence) => rdma::advice(sentence),
        E::Refused if url.carriage == Carriage::Rdma => (
            "connection",
            "start the target there (`farblock serve … --listen rdma:ADDR:PORT`), or correct the \
             port",
        ),
        E::Unreachable(sentence) if url.carriage == Carriage::Rdma => rdma::advice(sentence),
        E::Refused | E::Unreachable(_) | E::Unresolved(_) | E::Io(_) => {
            ("connection", "the server answered before: try again, and check the target's log")
        }
        E::Tcp(refusal) => tcp(refusal),
        _ => keys(reason).unwrap_or(UNEXPLAINED),
    };
    (check, advice.to_owned())
}

/// The failed step and advice, for all other errors.
const UNEXPLAINED: (&str, &str) = (
    "connect",
    "check the target's log; to report the error to the target's vendor, run this command again \
     with -vv, and attach its output",
);

/// The failed step and advice, for errors of the TCP transport.
fn tcp(refusal: &TcpRefusal) -> (&'static str, &'static str) {
    match refusal {
        TcpRefusal::NotNvmeTcp { .. } => ("protocol", "correct the port"),
        TcpRefusal::DigestsRefused => {
            ("digests", "omit --header-digest and --data-digest, or enable digests at the target")
        }
        TcpRefusal::DigestMismatch => (
            "digests",
            "the network corrupts data: look for a faulty cable, port or network adapter, and try \
             without the adapter's offloads (ethtool -K DEV rx off tx off)",
        ),
        TcpRefusal::Tls(_) => (
            "TLS",
            "give both ends the same key: run `farblock keys check FILE` at both ends, then \
             compare the output of `farblock keys derive FILE --host HOSTNQN --subsystem NQN`",
        ),
        _ => UNEXPLAINED,
    }
}

/// Returns the failed step and advice, for errors with keys; `None` for other errors.
fn keys(reason: &ConnectError) -> Option<(&'static str, &'static str)> {
    use ConnectError as E;
    Some(match reason {
        E::KeyFile(_) => (
            "key",
            "correct the file; `farblock keys check FILE` checks it, and `farblock keys new` \
             makes a new key",
        ),
        E::AuthenticationRequired => (
            "authentication",
            "get this host's secret from the operator of the target, store it in a file with mode \
             600, and use --dhchap-secret FILE (or ?dhchap-secret=FILE in the URL)",
        ),
        E::AuthenticationNotOffered => (
            "authentication",
            "configure the target to authenticate this host and itself (serve --host-key \
             NQN=FILE --controller-key FILE), or omit --dhchap-ctrl-secret",
        ),
        E::AuthenticationFailed(_) | E::ProofNotJudged => (
            "authentication",
            "compare the secrets at both ends: equal secrets have the same fingerprint (`farblock \
             keys show FILE`); if the controller must authenticate itself, add \
             --dhchap-ctrl-secret; the target's log names the reason, for example that the ends \
             have no hash function or DH group in common (--dhchap-hashes, --dhchap-dhgroups)",
        ),
        E::SecureChannelRequired => (
            "authentication",
            "add --concat to --dhchap-secret FILE (or ?concat=1 to the URL), or use TLS with \
             --tls-key FILE and a TLS key that the target has for this host",
        ),
        _ => return None,
    })
}

/// Returns the failed step and advice if the target refuses the name of the host or the subsystem.
fn names(reason: &ConnectError, url: &Url, options: &Options) -> (&'static str, String) {
    let nqn = url.subsystem.as_deref().unwrap_or("NQN");
    let options = options.with_url(url);
    let host = options.identity().nqn;
    let known = farblock_host::discover(&url.service(), &options).unwrap_or_default();
    if *reason == ConnectError::HostNotAllowed {
        let listed = known.iter().any(|entry| entry.is_subsystem() && entry.subnqn == nqn);
        let advice = if listed { proof(&options) } else { not_listed(nqn, &host) };
        return ("host", advice);
    }
    let mut known: Vec<_> =
        known.iter().filter(|entry| entry.is_subsystem()).map(|it| it.subnqn.as_str()).collect();
    known.dedup();
    let shown = known.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = if known.len() > NAMED { " and others" } else { "" };
    let address = url.address();
    let advice = match known.is_empty() {
        true => format!(
            "the target lists no subsystem for the host {host}: correct the subsystem NQN in the \
             URL, or allow this host at the target"
        ),
        false => {
            format!(
                "correct the name: the target has {shown}{more} (`farblock discover {address}`)"
            )
        }
    };
    ("subsystem", advice)
}

/// Returns the advice if the target does not list the subsystem for this host. Then the target does
/// not allow the host, or requires TLS for it, which this listener does not offer.
fn not_listed(nqn: &str, host: &str) -> String {
    let let_in = remote::let_in(nqn, host);
    format!(
        "this host is {host}: {let_in}, or connect as another host with --hostnqn NQN; if the \
         target allows this host already, the host must use TLS, but this listener does not offer \
         TLS: use another listener, or enable TLS here (`farblock ctl set-tls ADDR:PORT allowed`)"
    )
}

/// Returns the advice if the target lists the subsystem for this host's name, but refuses the
/// connection. Then the host must also prove its identity with a key.
fn proof(options: &Options) -> String {
    let nqn = options.identity().nqn;
    match (&options.tcp.tls_key, options.tcp.concatenate) {
        (Some(_), _) => format!(
            "the target knows {nqn}, but this key belongs to another host or another subsystem: \
             use --tls-key FILE with the key for this host and subsystem"
        ),
        (None, true) => format!(
            "the target knows {nqn}, but requires this host's TLS key, which --concat does not \
             use: replace --concat with --tls-key FILE"
        ),
        (None, false) => format!(
            "the target knows {nqn}, but accepts this host only over TLS: use --tls-key FILE, or \
             --concat with --dhchap-secret FILE"
        ),
    }
}

/// Returns the advice if the target knows the host's name, but with another identifier.
fn identifier(options: &Options) -> String {
    let HostIdentity { nqn, id } = options.identity();
    format!(
        "the target knows {nqn}, but not with the identifier {id}: correct the identifier at the \
         target (host_id), or set this host's identifier to the target's (?hostid=UUID; `farblock \
         whoami` shows the file with this host's)"
    )
}

/// Returns the namespace, or a finding if the host cannot use it.
pub(super) fn namespace(
    controller: &farblock_host::Controller,
    url: &Url,
    options: &Options,
    nsid: u32,
) -> Result<farblock_host::RemoteNamespace, Finding> {
    remote::namespace(controller, url, options, nsid).map_err(|failure| {
        let advice = "correct ?ns=ID in the URL, or share the namespace with this host";
        Finding::problem("namespace", failure.sentence(), advice)
    })
}
