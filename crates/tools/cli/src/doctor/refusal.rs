//! Advice for each reason why a connection fails.

use super::finding::Finding;
use crate::remote;
use farblock_host::identity::HostIdentity;
use farblock_host::url::Url;
use farblock_host::{Error, Options};
use farblock_proto::host::ConnectError;
use farblock_proto::tcp::TcpRefusal;

/// The number of a target's subsystems that the advice names at most.
const NAMED: usize = 5;

/// Advice for steps that follow successful small packets: the path may drop large ones.
pub(super) const LARGE_PACKETS: &str = "look at the target's log; if it is well, large packets \
    may be lost on the way (path MTU): try `ping -M do -s 1472 HOST`, and set the same MTU on both \
    machines and all that is between them";

/// The finding for a failed connection.
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
            "see `farblock doctor`, without an argument, for what this machine lacks",
        ),
        _ => Finding::problem("controller", error.to_string(), "correct that in the command"),
    }
}

/// The failed step, and advice.
fn advice(reason: &ConnectError, url: &Url, options: &Options) -> (&'static str, String) {
    use ConnectError as E;
    let (check, advice) = match reason {
        E::HostNotAllowed | E::NoSuchSubsystem => return names(reason, url, options),
        E::IdentifierNotAllowed => return ("host", identifier(&options.with_url(url))),
        E::TimedOut { .. } | E::Closed { .. } => ("connect", LARGE_PACKETS),
        E::ControllerBusy | E::NoQueueLeft { .. } => (
            "connect",
            "let other hosts detach, or raise the target's limits; hosts that have died free \
             theirs after their keep alive timeout",
        ),
        E::RestartDiscovery => ("connect", "run `farblock discover` again, and use what it lists"),
        E::NotReady { .. } | E::ControllerFatal => {
            ("controller", "look at the target's log, and start the target again")
        }
        E::Refused | E::Unreachable(_) | E::Unresolved(_) | E::Io(_) => {
            ("connection", "it was there a moment ago: try again, and look at the target's log")
        }
        E::Tcp(refusal) => tcp(refusal),
        _ => keys(reason).unwrap_or(UNEXPLAINED),
    };
    (check, advice.to_owned())
}

/// Advice for an error that has no other.
const UNEXPLAINED: (&str, &str) = (
    "connect",
    "look at the target's log, and run this again with -vv: its output belongs in a report to the \
     maker of the target",
);

/// The failed step and advice, for errors of the TCP transport.
fn tcp(refusal: &TcpRefusal) -> (&'static str, &'static str) {
    match refusal {
        TcpRefusal::NotNvmeTcp { .. } => ("protocol", "correct the port"),
        TcpRefusal::DigestsRefused => (
            "digests",
            "leave --header-digest and --data-digest out, or enable digests at the target",
        ),
        TcpRefusal::DigestMismatch => (
            "digests",
            "something on the way damages data: look for a faulty cable, port or network adapter, \
             and try without its offloads (ethtool -K DEV rx off tx off)",
        ),
        TcpRefusal::Tls(_) => (
            "TLS",
            "let both ends have the same key: `farblock keys check FILE` here and there, then \
             `farblock keys derive FILE --host HOSTNQN --subsystem NQN`",
        ),
        _ => UNEXPLAINED,
    }
}

/// The failed step and advice, for errors with keys; `None` for other errors.
fn keys(reason: &ConnectError) -> Option<(&'static str, &'static str)> {
    use ConnectError as E;
    Some(match reason {
        E::KeyFile(_) => (
            "key",
            "correct the file; `farblock keys check FILE` says whether it is in order, and \
             `farblock keys new` makes a new one",
        ),
        E::AuthenticationRequired => (
            "authentication",
            "ask whoever runs the target for this host's secret, keep it in a file with mode 600, \
             and give --dhchap-secret FILE (or ?dhchap-secret=FILE in the URL)",
        ),
        E::AuthenticationNotOffered => (
            "authentication",
            "have the target ask for it (serve --host-key NQN=FILE --controller-key FILE), or \
             leave --dhchap-ctrl-secret out",
        ),
        E::AuthenticationFailed(_) | E::ProofNotJudged => (
            "authentication",
            "compare the secrets at both ends: `farblock keys show FILE` has the same fingerprint \
             if they are the same; or give --dhchap-ctrl-secret if the controller demands to prove \
             itself; the target's log says what it expected, also where the ends have no hash \
             function or group in common (--dhchap-hashes, --dhchap-dhgroups)",
        ),
        E::SecureChannelRequired => (
            "authentication",
            "give --concat beside --dhchap-secret FILE (or ?concat=1 in the URL), or use TLS with \
             a key of its own that the target knows: --tls-key FILE",
        ),
        _ => return None,
    })
}

/// The failed step and advice, for names that the target does not know.
fn names(reason: &ConnectError, url: &Url, options: &Options) -> (&'static str, String) {
    let nqn = url.subsystem.as_deref().unwrap_or("NQN");
    let options = options.with_url(url);
    let host = options.identity().nqn;
    let known = farblock_host::discover(&url.address(), &options).unwrap_or_default();
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
            "the target shows no subsystem to the host {host}: correct the subsystem NQN in the \
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

/// The target does not list the subsystem for this host: it does not allow the host, or it requires
/// TLS and this listener has none.
fn not_listed(nqn: &str, host: &str) -> String {
    let let_in = remote::let_in(nqn, host);
    format!(
        "this host is {host}: {let_in}, or connect as another with --hostnqn NQN; if it is \
         allowed already, it has to use TLS and this listener has none: connect to another one, or \
         give this one TLS (`farblock ctl set-tls ADDR:PORT allowed`)"
    )
}

/// The target lists the subsystem for this host's name but refuses the connection: the host must
/// also prove its identity with a key.
fn proof(options: &Options) -> String {
    let nqn = options.identity().nqn;
    match (&options.tcp.tls_key, options.tcp.concatenate) {
        (Some(_), _) => format!(
            "the target knows {nqn}, but the key is another host's or for another subsystem \
             there: give --tls-key FILE with the key of this one"
        ),
        (None, true) => format!(
            "the target knows {nqn}, so the name is not enough: it has a key for TLS there, and \
             --concat does without that key: give --tls-key FILE in its place"
        ),
        (None, false) => format!(
            "the target knows {nqn}, so the name is not enough: it is let in with TLS alone (give \
             --tls-key FILE; or --concat with --dhchap-secret FILE)"
        ),
    }
}

/// The target knows the host's name, but with another identifier.
fn identifier(options: &Options) -> String {
    let HostIdentity { nqn, id } = options.identity();
    format!(
        "the target knows {nqn}, but not with the identifier {id}: correct it there (host_id), or \
         give this host the one that it has there (?hostid=UUID; `farblock whoami` says where its \
         own is kept)"
    )
}

/// The finding for a namespace that cannot be used.
pub(super) fn namespace(
    controller: &farblock_host::Controller,
    url: &Url,
    options: &Options,
    nsid: u32,
) -> Result<farblock_host::RemoteNamespace, Finding> {
    remote::namespace(controller, url, options, nsid).map_err(|failure| {
        let advice = "correct ?ns=ID in the URL, or have the target share it with this host";
        Finding::problem("namespace", failure.sentence(), advice)
    })
}
