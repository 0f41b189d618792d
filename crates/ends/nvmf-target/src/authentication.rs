//! Who has to authenticate, and the thread that calculates for it.
//!
//! An exchange costs milliseconds of big numbers, which a core has not to spare: others' I/O would
//! wait for strangers. A session hands its machine to the one thread of the target, which works
//! through them in order, and gets it back in its core's mailbox. What waits there is one message
//! of a connection at most, and connections are limited. It calculates nothing for those that are
//! closed: else strangers that come and go would keep it busy for ever.

use crate::config::Subsystem;
use crate::shared::{Message, Route, Shared};
use farblock_proto::capsule::SlotId;
use farblock_reactor::os;
use farblock_secure::{Controller, ControllerTerms, Group, Hash, Secret};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};

/// How a host of a subsystem has to authenticate (DH-HMAC-CHAP).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostKeys {
    /// The host's secret; two while one takes the other's place.
    pub host: Vec<Secret>,
    /// The controller's own secret, if hosts may ask it to prove itself as well.
    pub controller: Option<Secret>,
    /// Hash functions that are accepted, the best first.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups that are accepted, the best first.
    pub groups: Vec<Group>,
}

impl HostKeys {
    /// With a secret, and whatever hash function and group the host knows.
    #[must_use]
    pub fn new(host: Secret) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::ALL.to_vec());
        Self { host: vec![host], controller: None, hashes, groups }
    }
}

/// What a session has the thread do.
struct Job {
    route: Route,
    slot: SlotId,
    machine: Box<Controller>,
    message: Vec<u8>,
    /// Gone with the session: nobody waits for the answer any more.
    waits: Weak<()>,
}

impl Job {
    /// Gives what the session is told, if it is still there.
    fn work(self) -> Option<(Route, Message)> {
        let Job { route, slot, mut machine, message, waits } = self;
        waits.upgrade()?;
        machine.handle(&message, &mut fill);
        Some((route, Message::Authenticated { route, slot, machine }))
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Authenticator {
    /// By the names of subsystem and host.
    terms: Mutex<HashMap<(String, String), Arc<ControllerTerms>>>,
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Authenticator {
    /// Has the hosts of a subsystem authenticate that are to, and no others.
    pub(crate) fn require(&self, subsystem: &Subsystem) {
        let nqn = &subsystem.config.nqn;
        let mut all = self.terms.lock().expect("no holder panics");
        all.retain(|(owner, _), _| owner != nqn);
        for (host, keys) in &subsystem.keys {
            let terms = ControllerTerms {
                host_nqn: host.clone(),
                subsystem_nqn: nqn.clone(),
                host_secrets: keys.host.clone(),
                controller_secret: keys.controller.clone(),
                hashes: keys.hashes.clone(),
                groups: keys.groups.clone(),
            };
            all.insert((nqn.clone(), host.clone()), Arc::new(terms));
        }
    }

    /// How this host has to authenticate, if it has to.
    pub(crate) fn terms(&self, subsystem: &str, host: &str) -> Option<Arc<ControllerTerms>> {
        let all = self.terms.lock().expect("no holder panics");
        if all.is_empty() {
            return None;
        }
        all.get(&(subsystem.to_owned(), host.to_owned())).map(Arc::clone)
    }

    /// Has the machine handle a message; it comes back as [`Message::Authenticated`].
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(crate) fn submit(
        shared: &Arc<Shared>,
        route: Route,
        slot: SlotId,
        machine: Box<Controller>,
        message: Vec<u8>,
        waits: Weak<()>,
    ) -> io::Result<()> {
        let mut jobs = shared.authenticator.jobs.lock().expect("no holder panics");
        let sender = match &mut *jobs {
            Some(sender) => sender,
            none => none.insert(start(shared)?),
        };
        // If it has ended, so has the target, and nobody waits for an answer.
        let _ = sender.send(Job { route, slot, machine, message, waits });
        Ok(())
    }
}

/// Starts the thread, when it is needed first. It ends when nobody has `shared` any more.
fn start(shared: &Arc<Shared>) -> io::Result<Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let weak = Arc::downgrade(shared);
    os::spawn("farblock-auth".to_owned(), move || {
        while let Ok(job) = os::recv(&jobs) {
            let Some((route, done)) = job.work() else { continue };
            let Some(shared) = weak.upgrade() else { break };
            shared.mailboxes()[route.core].post(done);
        }
    })?;
    Ok(sender)
}

/// Random bytes of the system, or of the simulation.
fn fill(bytes: &mut [u8]) {
    if !os::fill_simulated(bytes) {
        // It gave some when the target was started.
        getrandom::fill(bytes).expect("the system gives random numbers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ConnectionKey;

    #[test]
    fn nothing_is_calculated_for_who_is_gone() {
        let secret = Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(1));
        let HostKeys { host, controller, hashes, groups } =
            HostKeys::new(secret.expect("a length"));
        let terms = Arc::new(ControllerTerms {
            host_nqn: "host".to_owned(),
            subsystem_nqn: "subsystem".to_owned(),
            host_secrets: host,
            controller_secret: controller,
            hashes,
            groups,
        });
        let session = Arc::new(());
        let job = || Job {
            route: Route { core: 0, key: ConnectionKey(1), serial: 1 },
            slot: SlotId(0),
            machine: Box::new(Controller::new(Arc::clone(&terms))),
            message: Vec::new(),
            waits: Arc::downgrade(&session),
        };
        assert!(job().work().is_some());
        let late = job();
        drop(session);
        assert!(late.work().is_none());
    }
}
