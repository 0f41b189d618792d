//! SPDK's JSON-RPC, for clients that support no other API: `spdk-rpc`, CSI drivers, scripts.
//!
//! **Purpose.** [`SpdkRpc`] implements SPDK's methods for the target of a [`Steering`].
//! [`serve_spdk`] serves them on a Unix socket that only its owner can open. The error numbers and
//! texts are SPDK's, because clients match on them. The field `data` of an error adds a sentence.
//!
//! **Contract.** Every change to the target is a change of its document. Some of SPDK's state has
//! no place in a document. This crate keeps it until the process exits: unused bdevs, the subsystem
//! to which a listener was added, and the names of keys.
//!
//! **Not implemented.** Listeners of a single subsystem: hosts reach every subsystem at every
//! address, and an ANA state applies to all of them. Metadata and protection information.

#![cfg(unix)]
#![forbid(unsafe_code)]

mod bdev_calls;
mod bdevs;
mod frame;
mod framework_calls;
mod keyring_calls;
mod limits;
mod listener_calls;
mod message;
mod nvmf_calls;
mod qos_calls;
mod saved;
mod server;
mod stat_calls;
#[cfg(test)]
mod tests;
mod view;
mod visibility_calls;

pub use bdevs::Bdevs;
pub use server::{SpdkServer, serve_spdk};

use farblock_admin::{AUDIT, Open, Refused, Reread, Steering};
use farblock_admin_api::OpenTimeouts;
use farblock_state::{Document, Entrance, Host, Transport};
use message::{Answer, INVALID_STATE, METHOD_NOT_FOUND, Params, RpcError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// SPDK's methods for one target; see the [crate] documentation.
pub struct SpdkRpc {
    steering: Arc<Steering>,
    bdevs: Arc<Bdevs>,
    /// The state outside of the document. A call holds the lock, so calls run one at a time.
    table: Mutex<Table>,
    seen: Mutex<Seen>,
}

/// The document that the current call has read: its version, and whether it is still the current
/// one.
#[derive(Default)]
struct Seen {
    etag: String,
    /// Whether another client has changed the document since the call read it.
    is_stale: bool,
}

/// The maximum number of attempts of a call, if other clients change the document meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// State that has no place in a document.
struct Table {
    opener: Arc<dyn Open>,
    patience: OpenTimeouts,
    /// The transports, with the parameters of the calls that created them.
    transports: BTreeMap<Transport, serde_json::Map<String, serde_json::Value>>,
    subsystems: BTreeMap<String, Extra>,
    /// The listeners that SPDK clients have opened.
    opened: BTreeSet<Entrance>,
    /// The key files, by the names that clients gave them.
    keys: BTreeMap<String, String>,
    /// The counter for generated bdev names.
    named: u64,
}

/// State of a subsystem that has no place in a document.
#[derive(Clone, Default)]
struct Extra {
    /// The addresses that clients added. `None` if the subsystem was created through another
    /// interface, and so listens at every address.
    listeners: Option<BTreeSet<Entrance>>,
    /// The hosts without keys that clients added while the subsystem allows any host. The
    /// subsystem's list gets them once only listed hosts may connect.
    dormant_hosts: BTreeMap<String, Host>,
    max_namespaces: Option<u32>,
}

/// A method: its name, whether SPDK allows it only before initialization, and its implementation.
struct Method {
    name: &'static str,
    at_start: bool,
    call: Call,
}

type Call = fn(&SpdkRpc, &mut Table, Params) -> Answer;

impl SpdkRpc {
    /// Creates the methods for the target of `steering`. The target must open its namespaces with
    /// the opener from [`Bdevs::opening`] of `bdevs`. The methods open the storage of new bdevs
    /// with `opener`.
    pub fn new(steering: Arc<Steering>, bdevs: Arc<Bdevs>, opener: Arc<dyn Open>) -> Self {
        let (document, _) = steering.document();
        let used = document.listeners.keys().filter(|_| !document.subsystems.is_empty());
        let transports = used.map(|one| (one.transport, serde_json::Map::new()));
        let table = Table {
            opener,
            patience: OpenTimeouts::default(),
            transports: transports.collect(),
            subsystems: BTreeMap::new(),
            opened: BTreeSet::new(),
            keys: BTreeMap::new(),
            named: 0,
        };
        Self { steering, bdevs, table: Mutex::new(table), seen: Mutex::default() }
    }

    /// Answers a request or a batch. `None` if the client expects no answer.
    fn answer(&self, text: &[u8]) -> Option<Vec<u8>> {
        message::answer(text, &mut |method, params| self.call(method, params))
    }

    fn call(&self, name: &str, params: Params) -> Answer {
        let Some(method) = methods().find(|method| method.name == name) else {
            return Err(RpcError::new(METHOD_NOT_FOUND, "Method not found"));
        };
        if method.at_start {
            let sentence = "Method may only be called before framework is initialized. Use \
                            --wait-for-rpc command line parameter and then issue this RPC before \
                            the framework_start_init RPC.";
            return Err(RpcError::new(INVALID_STATE, sentence));
        }
        self.carry_out(method.call, &params)
    }

    /// Runs a call, which reads the current document. If another client changes the document
    /// meanwhile, the call runs again.
    fn carry_out(&self, call: Call, params: &Params) -> Answer {
        let mut table = self.table.lock().expect("no lock holder panics");
        let mut attempts = 0;
        loop {
            let (document, etag) = self.steering.document();
            *self.seen() = Seen { etag, is_stale: false };
            table.forget_what_is_gone(&document);
            let answer = call(self, &mut table, params.clone());
            attempts += 1;
            if attempts == MAX_ATTEMPTS || !self.seen().is_stale {
                return answer;
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no lock holder panics")
    }

    /// Changes the document, provided that it is still the version that the call has read.
    fn change(&self, edit: impl FnOnce(&mut Document)) -> Result<(), Refused> {
        self.change_and_read(&Reread::Nothing, edit)
    }

    /// Like [`Self::change`], but also reads key files again.
    fn change_and_read(
        &self,
        reread: &Reread,
        edit: impl FnOnce(&mut Document),
    ) -> Result<(), Refused> {
        let edited = |document: &Document| {
            let mut document = document.clone();
            edit(&mut document);
            Ok(document)
        };
        let etag = self.seen().etag.clone();
        let done = self.steering.change(Some(&etag), reread, edited);
        let mut seen = self.seen();
        match done {
            Ok(changed) => {
                if !changed.steps.is_empty() {
                    let summary = changed.summary();
                    tracing::info!(target: AUDIT, who = "an SPDK client", "{summary}");
                }
                seen.etag = changed.etag;
                Ok(())
            }
            Err(refused) => {
                seen.is_stale = matches!(refused, Refused::Stale(_));
                Err(refused)
            }
        }
    }
}

impl Table {
    /// Forgets the state of subsystems and listeners that were removed through another interface.
    /// Also forgets the dormant hosts (stored hosts that no list contains yet) of subsystems that
    /// were restricted to listed hosts in this way.
    fn forget_what_is_gone(&mut self, document: &Document) {
        let stays = |nqn: &String| view::is_discovery(nqn) || document.subsystems.contains_key(nqn);
        self.subsystems.retain(|nqn, _| stays(nqn));
        // If a client restricted the hosts, `allow_any_host` has already listed its dormant hosts.
        let counts =
            |nqn: &String| document.subsystems.get(nqn).is_some_and(|it| !it.allow_any_host);
        let listed = self.subsystems.iter_mut().filter(|(nqn, _)| counts(nqn));
        listed.for_each(|(_, extra)| extra.dormant_hosts.clear());
        self.opened.retain(|address| document.listeners.contains_key(address));
    }
}

fn methods() -> impl Iterator<Item = &'static Method> {
    let parts = [
        framework_calls::METHODS,
        keyring_calls::METHODS,
        bdev_calls::METHODS,
        nvmf_calls::METHODS,
        listener_calls::METHODS,
        visibility_calls::METHODS,
        qos_calls::METHODS,
        stat_calls::METHODS,
    ];
    parts.into_iter().flatten()
}

/// A method that clients can always call.
const fn method(name: &'static str, call: Call) -> Method {
    Method { name, at_start: false, call }
}

/// Converts a refused change of the document to `error`.
fn refused(error: RpcError) -> impl FnOnce(Refused) -> RpcError {
    |refused| error.because(refused)
}

/// Returns an error if the client requests a feature that farblock lacks.
fn unsupported(asked: bool, sentence: &str) -> Result<(), RpcError> {
    match asked {
        true => Err(RpcError::invalid().because(sentence)),
        false => Ok(()),
    }
}
