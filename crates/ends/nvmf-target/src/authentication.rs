//! The hosts that must authenticate, and the thread that does the cryptography.
//!
//! An exchange takes milliseconds of modular exponentiation, and other hosts' I/O must not wait for
//! this. A session therefore passes its state machine to the target's one authentication thread.
//! The thread returns the state machine through the core's mailbox. Each connection has at most one
//! message in the thread's queue, and the number of connections is limited. The thread skips
//! messages of closed connections: otherwise peers that connect and disconnect could keep it busy
//! forever.

mod backlog;

use crate::config::Subsystem;
use crate::host_keys::HostKeys;
use crate::mailbox::Message;
use crate::notices::origin;
use crate::recent_addresses::RecentAddresses;
use crate::route::Route;
use backlog::{Backlog, Origin};
use farblock_proto::capsule::SlotId;
use farblock_reactor::os;
use farblock_secure::{Concatenation, Controller, ControllerTerms, Cost, Demand, Secret};
use farblock_wire::auth::{CommonMessage, MessageHead, MessageType, Negotiate};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};

pub(crate) struct Job {
    route: Route,
    slot: SlotId,
    machine: Box<Controller>,
    message: Vec<u8>,
    cost: Cost,
    /// The session holds the strong reference. Once the session has closed, the thread skips the
    /// job.
    waits: Weak<()>,
}

impl backlog::Work for Job {
    fn is_awaited(&self) -> bool {
        self.waits.strong_count() > 0
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

impl Job {
    /// Returns a job that handles `message` with `machine`. The thread skips the job once `waits`
    /// is dropped.
    pub(crate) fn new(
        (route, slot): (Route, SlotId),
        machine: Box<Controller>,
        message: Vec<u8>,
        waits: &Arc<()>,
    ) -> Self {
        let cost = machine.cost(&message);
        Self { route, slot, machine, message, cost, waits: Arc::downgrade(waits) }
    }

    /// Handles the message and returns the reply for the session, or `None` if the session has
    /// closed.
    fn work(self) -> Option<(Route, Message)> {
        let Job { route, slot, mut machine, message, waits, .. } = self;
        waits.upgrade()?;
        // Load the TLS library only when a host requests TLS, so that a target without such hosts
        // works without the library.
        if asks_for_tls(&message) && farblock_tls::available().is_err() {
            machine = Box::new(machine.offering(Concatenation::NONE));
        }
        machine.handle(&message, &mut fill);
        Some((route, Message::Authenticated { route, slot, machine }))
    }
}

/// Returns whether `message` is an AUTH_Negotiate that requests secure channel concatenation.
fn asks_for_tls(message: &[u8]) -> bool {
    let common = MessageHead::parse(message).filter(|head| {
        (head.auth_type, head.auth_id) == (MessageType::COMMON.0, CommonMessage::NEGOTIATE.0)
    });
    common.and_then(|_| Negotiate::parse(message)).is_some_and(|head| head.sc_c != 0)
}

#[derive(Default)]
pub(crate) struct Authenticator {
    terms: Mutex<HashMap<(String, String), Arc<ControllerTerms>>>,
    /// The host that owns each exclusive host identifier, by subsystem name and identifier.
    ids: Mutex<HashMap<(String, [u8; 16]), String>>,
    /// Addresses from which hosts have recently authenticated.
    known: Mutex<RecentAddresses>,
    jobs: Mutex<Option<Sender<(Origin, Job)>>>,
}

impl Authenticator {
    /// Replaces the authentication terms of all hosts of a subsystem.
    pub(crate) fn require(&self, subsystem: &Subsystem) {
        let nqn = &subsystem.config.nqn;
        let mut all = self.terms.lock().expect("no holder panics");
        all.retain(|(owner, _), _| owner != nqn);
        for (host, keys) in subsystem.keys.iter().filter(|(_, keys)| keys.authenticates()) {
            all.insert((nqn.clone(), host.clone()), Arc::new(keys.terms(nqn, host)));
        }
        drop(all);
        subsystem.keys.iter().for_each(|(host, keys)| self.bind(nqn, host, keys.id));
    }

    /// Reserves the host identifier `id` for this host. `None` removes the reservation.
    fn bind(&self, subsystem: &str, host: &str, id: Option<[u8; 16]>) {
        let mut ids = self.ids.lock().expect("no holder panics");
        ids.retain(|(owner, _), name| owner != subsystem || name != host);
        if let Some(id) = id {
            ids.insert((subsystem.to_owned(), id), host.to_owned());
        }
    }

    pub(crate) fn may_be(&self, subsystem: &str, host: &str, id: [u8; 16]) -> bool {
        let ids = self.ids.lock().expect("no holder panics");
        match ids.get(&(subsystem.to_owned(), id)) {
            Some(owner) => owner == host,
            None => !ids.iter().any(|((owner, _), name)| owner == subsystem && name == host),
        }
    }

    /// Returns whether the configuration reserves the host identifier `id` for one host of the
    /// subsystem.
    pub(crate) fn is_said(&self, subsystem: &str, id: [u8; 16]) -> bool {
        self.ids.lock().expect("no holder panics").contains_key(&(subsystem.to_owned(), id))
    }

    /// Sets how a host must authenticate. `None`: the host need not authenticate.
    ///
    /// Returns whether the host's connected queues may stay: if the host no longer needs to
    /// authenticate, or if an earlier secret is still valid and the requirements are not stricter
    /// than before.
    pub(crate) fn change(&self, subsystem: &str, host: &str, keys: Option<&HostKeys>) -> bool {
        self.bind(subsystem, host, keys.and_then(|keys| keys.id));
        let names = (subsystem.to_owned(), host.to_owned());
        let mut all = self.terms.lock().expect("no holder panics");
        let Some(keys) = keys.filter(|keys| keys.authenticates()) else {
            all.remove(&names);
            return true;
        };
        let mut terms = keys.terms(subsystem, host);
        if os::has_mistake("target: a removed secret stays valid") {
            let before = all.get(&names).map(|before| before.host_secrets.clone());
            terms.host_secrets.extend(before.unwrap_or_default());
        }
        let before = all.insert(names, Arc::new(terms));
        before.is_some_and(|before| {
            let is_more = keys.demand != Demand::Authentication && keys.demand != before.demand;
            !is_more && before.host_secrets.iter().any(|it| keys.host.contains(it))
        })
    }

    pub(crate) fn forget(&self, subsystem: &str) {
        self.terms.lock().expect("no holder panics").retain(|(owner, _), _| owner != subsystem);
        self.ids.lock().expect("no holder panics").retain(|(owner, _), _| owner != subsystem);
    }

    /// Returns the current terms of the host that `machine` authenticates; `None` if `machine`
    /// already uses them, or if the host need no longer authenticate.
    pub(crate) fn changed(&self, machine: &Controller) -> Option<Arc<ControllerTerms>> {
        let then = machine.terms();
        let now = self.terms(&then.subsystem_nqn, &then.host_nqn)?;
        (!Arc::ptr_eq(&now, then)).then_some(now)
    }

    /// Returns the fingerprints of the valid secrets of a subsystem's hosts, by host name.
    pub(crate) fn fingerprints(&self, subsystem: &str) -> BTreeMap<String, Vec<String>> {
        let all = self.terms.lock().expect("no holder panics");
        let ours = all.iter().filter(|((owner, _), _)| owner == subsystem);
        let shown =
            |terms: &ControllerTerms| terms.host_secrets.iter().map(Secret::fingerprint).collect();
        ours.map(|((_, host), terms)| (host.clone(), shown(terms))).collect()
    }

    /// Returns how this host must authenticate, or `None` if it need not authenticate.
    pub(crate) fn terms(&self, subsystem: &str, host: &str) -> Option<Arc<ControllerTerms>> {
        let all = self.terms.lock().expect("no holder panics");
        if all.is_empty() {
            return None;
        }
        all.get(&(subsystem.to_owned(), host.to_owned())).map(Arc::clone)
    }

    /// Remembers the address of a host that has authenticated.
    pub(crate) fn proved(&self, peer: IpAddr) {
        self.known.lock().expect("no holder panics").insert(origin(peer));
    }

    /// Queues a job for the authentication thread. The thread passes the reply, a
    /// [`Message::Authenticated`], to `post`. `post` sends the reply to a core and returns whether
    /// the target still runs.
    ///
    /// # Errors
    /// Fails if the system cannot start the thread.
    pub(crate) fn submit(
        &self,
        peer: IpAddr,
        job: Job,
        post: impl Fn(usize, Message) -> bool + Send + 'static,
    ) -> io::Result<()> {
        let address = origin(peer);
        let is_known = self.known.lock().expect("no holder panics").contains(address);
        let mut jobs = self.jobs.lock().expect("no holder panics");
        let sender = match &mut *jobs {
            Some(sender) => sender,
            none => none.insert(start(post)?),
        };
        // If the thread has ended, the target has stopped and needs no answer.
        let _ = sender.send((Origin { address, is_known }, job));
        Ok(())
    }
}

/// Starts the authentication thread, which runs until the target stops.
fn start(
    post: impl Fn(usize, Message) -> bool + Send + 'static,
) -> io::Result<Sender<(Origin, Job)>> {
    let (sender, jobs) = mpsc::channel();
    os::spawn("farblock-auth".to_owned(), move || {
        let mut backlog = Backlog::new(os::now());
        while let Some(job) = next(&jobs, &mut backlog) {
            let Some((route, done)) = job.work() else { continue };
            if !post(route.core, done) {
                break;
            }
        }
    })?;
    Ok(sender)
}

/// Moves the jobs that have arrived into the backlog, and takes the next job from the backlog.
/// Waits for a job if the backlog is empty. Returns `None` once the target has dropped the sender.
fn next(jobs: &Receiver<(Origin, Job)>, backlog: &mut Backlog<Job>) -> Option<Job> {
    loop {
        jobs.try_iter().for_each(|(origin, job)| backlog.push(origin, job));
        let next = backlog.pop(os::now());
        if next.is_some() {
            return next;
        }
        let (origin, job) = os::recv(jobs).ok()?;
        backlog.push(origin, job);
    }
}

/// Fills `bytes` with random bytes from the system or the simulation.
fn fill(bytes: &mut [u8]) {
    if !os::fill_simulated(bytes) {
        // The system delivered random bytes when the target started, so this does not fail.
        getrandom::fill(bytes).expect("the system returns random numbers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::ConnectionKey;

    #[test]
    fn no_proof_is_computed_for_a_closed_connection() {
        let secret = Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(1));
        let terms = Arc::new(HostKeys::new(secret.expect("a length")).terms("subsystem", "host"));
        let session = Arc::new(());
        let route = Route { core: 0, key: ConnectionKey(1), serial: 1 };
        let job = || {
            let machine = Box::new(Controller::new(Arc::clone(&terms)));
            Job::new((route, SlotId(0)), machine, Vec::new(), &session)
        };
        assert!(job().work().is_some());
        let late = job();
        drop(session);
        assert!(late.work().is_none());
    }
}
