//! Who has to authenticate, and the thread that calculates for it.
//!
//! An exchange costs milliseconds of big numbers, which a core has not to spare: others' I/O would
//! wait for strangers. A session hands its machine to the one thread of the target, which works
//! through them, and gets it back in its core's mailbox. What waits there is one
//! message of a connection at most, and connections are limited. It calculates nothing for those
//! that are closed: else strangers that come and go would keep it busy for ever.

mod backlog;

use crate::config::Subsystem;
use crate::known::Known;
use crate::notices::origin;
use crate::shared::{Message, Route, TargetShared};
use backlog::{Backlog, Origin};
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::HostChannel;
use farblock_reactor::os;
use farblock_secure::{
    Concatenation, Controller, ControllerTerms, Cost, Demand, Group, Hash, Secret, TlsKey,
};
use farblock_wire::auth::{CommonMessage, MessageHead, MessageType, Negotiate};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};

/// How a host of a subsystem has to prove who it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostKeys {
    /// Its secret for DH-HMAC-CHAP, which it has to authenticate with; two while one takes the
    /// other's place. None if TLS alone has to prove who it is.
    pub host: Vec<Secret>,
    /// The controller's own secret, if hosts may ask it to prove itself as well.
    pub controller: Option<Secret>,
    /// Hash functions that are accepted, the best first.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups that are accepted, the best first.
    pub groups: Vec<Group>,
    /// Its host identifier (HOSTID), if it has to give that one and nobody else may: reservations
    /// know hosts by it.
    pub id: Option<[u8; 16]>,
    /// Its key for TLS, which it has to use; two while one takes the other's place.
    pub tls: Vec<TlsKey>,
    /// What it has to do besides.
    pub demand: Demand,
}

impl HostKeys {
    /// With a secret, and whatever hash function and group the host knows.
    #[must_use]
    pub fn new(host: Secret) -> Self {
        Self { host: vec![host], ..Self::of_tls(Vec::new()) }
    }

    /// With keys for TLS alone.
    #[must_use]
    pub fn of_tls(tls: Vec<TlsKey>) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::ALL.to_vec());
        let demand = Demand::Authentication;
        Self { host: Vec::new(), controller: None, hashes, groups, id: None, tls, demand }
    }

    /// Whether it has to authenticate.
    fn authenticates(&self) -> bool {
        !self.host.is_empty()
    }

    /// How it has to come.
    pub(crate) fn channel(&self) -> HostChannel {
        match self.demand {
            _ if !self.tls.is_empty() => HostChannel::Tls,
            Demand::SecureChannel if self.authenticates() => HostChannel::Concatenated,
            _ => HostChannel::Plain,
        }
    }

    fn terms(&self, subsystem: &str, host: &str) -> ControllerTerms {
        ControllerTerms {
            host_nqn: host.to_owned(),
            subsystem_nqn: subsystem.to_owned(),
            host_secrets: self.host.clone(),
            controller_secret: self.controller.clone(),
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            demand: self.demand,
        }
    }
}

/// What a session has the thread do.
pub(crate) struct Job {
    route: Route,
    slot: SlotId,
    machine: Box<Controller>,
    message: Vec<u8>,
    cost: Cost,
    /// Gone with the session: nobody waits for the answer any more.
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
    /// A message for a machine, for as long as `waits` is there.
    pub(crate) fn new(
        (route, slot): (Route, SlotId),
        machine: Box<Controller>,
        message: Vec<u8>,
        waits: &Arc<()>,
    ) -> Self {
        let cost = machine.cost(&message);
        Self { route, slot, machine, message, cost, waits: Arc::downgrade(waits) }
    }

    /// Gives what the session is told, if it is still there.
    fn work(self) -> Option<(Route, Message)> {
        let Job { route, slot, mut machine, message, waits, .. } = self;
        waits.upgrade()?;
        // The library is loaded for whoever asks for TLS, and not before.
        if asks_for_tls(&message) && farblock_tls::available().is_err() {
            machine = Box::new(machine.offering(Concatenation::NONE));
        }
        machine.handle(&message, &mut fill);
        Some((route, Message::Authenticated { route, slot, machine }))
    }
}

/// Whether this is an AUTH_Negotiate that wants TLS to come of the authentication.
fn asks_for_tls(message: &[u8]) -> bool {
    let common = MessageHead::parse(message).filter(|head| {
        (head.auth_type, head.auth_id) == (MessageType::COMMON.0, CommonMessage::NEGOTIATE.0)
    });
    common.and_then(|_| Negotiate::parse(message)).is_some_and(|head| head.sc_c != 0)
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Authenticator {
    /// By the names of subsystem and host.
    terms: Mutex<HashMap<(String, String), Arc<ControllerTerms>>>,
    /// The hosts whose identifiers are theirs alone, by the subsystem's name and the identifier.
    ids: Mutex<HashMap<(String, [u8; 16]), String>>,
    /// Addresses from which hosts have proved who they are.
    known: Mutex<Known>,
    jobs: Mutex<Option<Sender<(Origin, Job)>>>,
}

impl Authenticator {
    /// Has the hosts of a subsystem authenticate that are to, and no others.
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

    /// Has an identifier be this host's alone, or none.
    fn bind(&self, subsystem: &str, host: &str, id: Option<[u8; 16]>) {
        let mut ids = self.ids.lock().expect("no holder panics");
        ids.retain(|(owner, _), name| owner != subsystem || name != host);
        if let Some(id) = id {
            ids.insert((subsystem.to_owned(), id), host.to_owned());
        }
    }

    /// Whether a host may give this identifier.
    pub(crate) fn may_be(&self, subsystem: &str, host: &str, id: [u8; 16]) -> bool {
        let ids = self.ids.lock().expect("no holder panics");
        match ids.get(&(subsystem.to_owned(), id)) {
            Some(owner) => owner == host,
            None => !ids.iter().any(|((owner, _), name)| owner == subsystem && name == host),
        }
    }

    /// Whether it is said whose this identifier is.
    pub(crate) fn is_said(&self, subsystem: &str, id: [u8; 16]) -> bool {
        self.ids.lock().expect("no holder panics").contains_key(&(subsystem.to_owned(), id))
    }

    /// Has a host authenticate like this from now on, or not at all. Gives whether one that is
    /// connected may stay: it has proved that it has a secret that is good still, and what is
    /// demanded of it now was demanded before; or it need not prove anything.
    pub(crate) fn change(&self, subsystem: &str, host: &str, keys: Option<&HostKeys>) -> bool {
        self.bind(subsystem, host, keys.and_then(|keys| keys.id));
        let names = (subsystem.to_owned(), host.to_owned());
        let mut all = self.terms.lock().expect("no holder panics");
        let Some(keys) = keys.filter(|keys| keys.authenticates()) else {
            all.remove(&names);
            return true;
        };
        let mut terms = keys.terms(subsystem, host);
        if os::has_mistake("target: a secret that was taken away stays good") {
            let before = all.get(&names).map(|before| before.host_secrets.clone());
            terms.host_secrets.extend(before.unwrap_or_default());
        }
        let before = all.insert(names, Arc::new(terms));
        before.is_some_and(|before| {
            let is_more = keys.demand != Demand::Authentication && keys.demand != before.demand;
            !is_more && before.host_secrets.iter().any(|it| keys.host.contains(it))
        })
    }

    /// A subsystem is gone.
    pub(crate) fn forget(&self, subsystem: &str) {
        self.terms.lock().expect("no holder panics").retain(|(owner, _), _| owner != subsystem);
        self.ids.lock().expect("no holder panics").retain(|(owner, _), _| owner != subsystem);
    }

    /// What a machine's host has to prove by now, if that has changed.
    pub(crate) fn changed(&self, machine: &Controller) -> Option<Arc<ControllerTerms>> {
        let then = machine.terms();
        let now = self.terms(&then.subsystem_nqn, &then.host_nqn)?;
        (!Arc::ptr_eq(&now, then)).then_some(now)
    }

    /// The fingerprints of the secrets that are good for the hosts of a subsystem.
    pub(crate) fn fingerprints(&self, subsystem: &str) -> BTreeMap<String, Vec<String>> {
        let all = self.terms.lock().expect("no holder panics");
        let ours = all.iter().filter(|((owner, _), _)| owner == subsystem);
        let shown =
            |terms: &ControllerTerms| terms.host_secrets.iter().map(Secret::fingerprint).collect();
        ours.map(|((_, host), terms)| (host.clone(), shown(terms))).collect()
    }

    /// How this host has to authenticate, if it has to.
    pub(crate) fn terms(&self, subsystem: &str, host: &str) -> Option<Arc<ControllerTerms>> {
        let all = self.terms.lock().expect("no holder panics");
        if all.is_empty() {
            return None;
        }
        all.get(&(subsystem.to_owned(), host.to_owned())).map(Arc::clone)
    }

    /// A host has proved who it is: its address is known from now on.
    pub(crate) fn proved(&self, peer: IpAddr) {
        self.known.lock().expect("no holder panics").insert(origin(peer));
    }

    /// Has the machine handle the message that came from this peer; it comes back as
    /// [`Message::Authenticated`].
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn submit(shared: &Arc<TargetShared>, peer: IpAddr, job: Job) -> io::Result<()> {
        let this = &shared.authenticator;
        let address = origin(peer);
        let is_known = this.known.lock().expect("no holder panics").contains(address);
        let mut jobs = this.jobs.lock().expect("no holder panics");
        let sender = match &mut *jobs {
            Some(sender) => sender,
            none => none.insert(start(shared)?),
        };
        // If it has ended, so has the target, and nobody waits for an answer.
        let _ = sender.send((Origin { address, is_known }, job));
        Ok(())
    }
}

/// Starts the thread, when it is needed first. It ends when nobody has `shared` any more.
fn start(shared: &Arc<TargetShared>) -> io::Result<Sender<(Origin, Job)>> {
    let (sender, jobs) = mpsc::channel();
    let weak = Arc::downgrade(shared);
    os::spawn("farblock-auth".to_owned(), move || {
        let mut backlog = Backlog::new(os::now());
        while let Some(job) = next(&jobs, &mut backlog) {
            let Some((route, done)) = job.work() else { continue };
            let Some(shared) = weak.upgrade() else { break };
            shared.mailboxes()[route.core].post(done);
        }
    })?;
    Ok(sender)
}

/// Whose turn it is, of all that have come by now; none when nobody will come any more.
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
