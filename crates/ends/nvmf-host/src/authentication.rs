//! Authenticates the host on each queue after its Connect, and the controller if the host has the
//! controller's secret.

use crate::control::blocking;
use crate::exchange::Exchange;
use crate::key_file;
use crate::options::Options;
use farblock_proto::host::{ConnectError, Identity, command};
use farblock_reactor::os;
use farblock_secure::{Concatenation, Group, Hash, Host, HostTerms, Step, TlsPsk};
use std::path::PathBuf;

/// Authenticates the host on a newly connected queue, or again on a queue in use.
pub(crate) async fn authenticate(
    queue: &mut impl Exchange,
    identity: &Identity<'_>,
    options: &Options,
) -> Result<(), ConnectError> {
    converse(queue, terms(identity, options).await?).await.map(drop)
}

/// Executes one authentication transaction; returns the generated TLS keys.
pub(crate) async fn converse(
    queue: &mut impl Exchange,
    terms: HostTerms,
) -> Result<Vec<TlsPsk>, ConnectError> {
    const DURING: &str = "the answer to an authentication message";
    let mut host = Host::new(terms, &mut fill);
    loop {
        match host.step() {
            Step::Send(message) => {
                let command = command::authentication_send(message.len() as u32);
                let sent = queue.execute(&command, &message, DURING).await;
                let sent = sent.map_err(|error| unjudged(&host, error));
                let sent = sent.and_then(|(cqe, _)| succeeded("Authentication Send", cqe.status()));
                host.handle_sent();
                // If the host rejects the controller, it sends its reason. The controller may then
                // close the connection without an answer. In this case, report the host's reason
                // instead of the closed connection.
                if !matches!(host.step(), Step::Failed(_)) {
                    sent?;
                }
            }
            Step::Receive => {
                let command = command::authentication_receive(Host::RECEIVE_BYTES);
                let received = queue.execute(&command, &[], DURING).await;
                let (cqe, message) = received.map_err(|error| unjudged(&host, error))?;
                succeeded("Authentication Receive", cqe.status())?;
                // Modular exponentiation takes too long for a loop that all controllers share, so
                // run it on another thread.
                let calculate = move || {
                    host.handle_received(&message, &mut fill);
                    host
                };
                host = elsewhere(calculate).await?;
            }
            Step::Done(agreed) => {
                tracing::debug!(
                    hash = %agreed.hash, group = %agreed.group, both = agreed.is_mutual,
                    "authenticated"
                );
                return Ok(host.take_psks());
            }
            Step::Failed(failure) => {
                return Err(ConnectError::AuthenticationFailed(failure.sentence));
            }
        }
    }
}

/// If the connection closed before the controller accepted or rejected the host, returns an error
/// that says so. Linux's target closes the connection right after its AUTH_Failure1 message, which
/// may therefore be lost.
fn unjudged(host: &Host, error: ConnectError) -> ConnectError {
    match error {
        ConnectError::Closed { .. } if host.awaits_judgement() => ConnectError::ProofNotJudged,
        error => error,
    }
}

async fn elsewhere<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConnectError> {
    blocking(act).await.map_err(|error| ConnectError::Io(error.to_string()))
}

/// Checks a queue that connected without authentication. Returns an error if the options require
/// that the controller authenticates.
pub(crate) fn not_asked_for(options: &Options) -> Result<(), ConnectError> {
    match &options.dhchap_ctrl_secret {
        Some(_) => Err(ConnectError::AuthenticationNotOffered),
        None => Ok(()),
    }
}

fn succeeded(what: &'static str, status: farblock_wire::Status) -> Result<(), ConnectError> {
    if status.is_success() { Ok(()) } else { Err(ConnectError::CommandFailed { what, status }) }
}

/// The host's authentication parameters. Each call reads the key files, so that a reconnect uses
/// their current content.
pub(crate) async fn terms(
    identity: &Identity<'_>,
    options: &Options,
) -> Result<HostTerms, ConnectError> {
    let secret = options.dhchap_secret.clone().ok_or(ConnectError::AuthenticationRequired)?;
    let trusts = os::has_mistake("host: the controller need not authenticate");
    let controllers = options.dhchap_ctrl_secret.clone().filter(|_| !trusts);
    let read = |path: PathBuf| key_file::read(&path).map_err(ConnectError::KeyFile);
    let both = move || {
        let host = read(secret)?.swap_remove(0);
        Ok::<_, ConnectError>((host, controllers.map(read).transpose()?))
    };
    let (host_secret, controller_secrets) = elsewhere(both).await??;
    Ok(HostTerms {
        host_nqn: identity.hostnqn.to_owned(),
        subsystem_nqn: identity.subnqn.to_owned(),
        host_secret,
        controller_secrets: controller_secrets.unwrap_or_default(),
        hashes: or_all(&options.dhchap_hashes, &Hash::ALL),
        groups: or_all(&options.dhchap_dhgroups, &Group::ALL),
        concatenation: Concatenation::NONE,
    })
}

/// Returns `listed`, or `all` if `listed` is empty, which means no restriction.
fn or_all<T: Clone>(listed: &[T], all: &[T]) -> Vec<T> {
    if listed.is_empty() { all.to_vec() } else { listed.to_vec() }
}

/// Fills `bytes` with random bytes from the system, or from the simulation.
fn fill(bytes: &mut [u8]) {
    if !os::fill_simulated(bytes) {
        getrandom::fill(bytes).expect("the system returns random numbers");
    }
}
