//! SPDK's JSON-RPC, for clients that speak nothing else: `spdk-rpc`, CSI drivers, scripts.
//!
//! **Purpose.** [`SpdkRpc`] implements SPDK's methods for the target of a [`Steering`];
//! [`serve_spdk`] serves them on a Unix socket that only its owner can open. Error numbers and
//! texts are SPDK's, since clients match on them; `data` adds a sentence.
//!
//! **Contract.** Every change to the target is a change of its document. SPDK state that has no
//! place in a document is kept here until the process exits: unused bdevs, the subsystem that a
//! listener was added to, and key names.
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

use farblock_admin::{AUDIT, Open, OpenTimeouts, Refused, Reread, Steering};
use farblock_state::{Document, Host};
use message::{Answer, INVALID_STATE, METHOD_NOT_FOUND, Params, RpcError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// See the module documentation.
pub struct SpdkRpc {
    steering: Arc<Steering>,
    bdevs: Arc<Bdevs>,
    /// Locked during a call: calls run one at a time.
    table: Mutex<Table>,
    seen: Mutex<Seen>,
}

/// The version of the document that the current call has read.
#[derive(Default)]
struct Seen {
    etag: String,
    /// Another client has changed the document since.
    is_stale: bool,
}

/// Maximum number of attempts of a call when other clients change the document.
const MAX_ATTEMPTS: usize = 8;

/// State without a place in a document.
struct Table {
    opener: Arc<dyn Open>,
    patience: OpenTimeouts,
    /// The parameters that created the transport, if a call did.
    transport: Option<serde_json::Map<String, serde_json::Value>>,
    subsystems: BTreeMap<String, Extra>,
    /// Listeners opened by calls.
    opened: BTreeSet<SocketAddr>,
    /// Key files by client-given names.
    keys: BTreeMap<String, String>,
    /// Counter for generated bdev names.
    named: u64,
}

/// State of a subsystem without a place in a document.
#[derive(Clone, Default)]
struct Extra {
    /// Addresses that clients added; `None` if another user created the subsystem, which then
    /// listens everywhere.
    listeners: Option<BTreeSet<SocketAddr>>,
    /// Hosts listed while any host may connect.
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
    /// Serves the target of `steering`, whose opener must be [`Bdevs::opening`] of `bdevs`.
    /// `opener` opens the storage of bdevs.
    pub fn new(steering: Arc<Steering>, bdevs: Arc<Bdevs>, opener: Arc<dyn Open>) -> Self {
        let shares = !steering.document().0.subsystems.is_empty();
        let table = Table {
            opener,
            patience: OpenTimeouts::default(),
            transport: shares.then(serde_json::Map::new),
            subsystems: BTreeMap::new(),
            opened: BTreeSet::new(),
            keys: BTreeMap::new(),
            named: 0,
        };
        Self { steering, bdevs, table: Mutex::new(table), seen: Mutex::default() }
    }

    /// The answer to a request or a batch; `None` if the client expects none.
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

    /// Runs a call, which decides by the current document. If another client changes the document
    /// meanwhile, the call runs again.
    fn carry_out(&self, call: Call, params: &Params) -> Answer {
        let mut table = self.table.lock().expect("no holder panics");
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
        self.seen.lock().expect("no holder panics")
    }

    /// Changes the document that the call has read.
    fn change(&self, edit: impl FnOnce(&mut Document)) -> Result<(), Refused> {
        self.change_and_read(&Reread::Nothing, edit)
    }

    /// The same, and reads key files again.
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
                    tracing::info!(target: AUDIT, who = "a client of SPDK's", "{summary}");
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
    /// Forgets state of subsystems, listeners and hosts that another user has removed or listed.
    fn forget_what_is_gone(&mut self, document: &Document) {
        let stays = |nqn: &String| view::is_discovery(nqn) || document.subsystems.contains_key(nqn);
        self.subsystems.retain(|nqn, _| stays(nqn));
        // Host lists are in force again: drop the dormant hosts.
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

/// A method that can always be called.
const fn method(name: &'static str, call: Call) -> Method {
    Method { name, at_start: false, call }
}

/// Converts a refused change to `error`.
fn refused(error: RpcError) -> impl FnOnce(Refused) -> RpcError {
    |refused| error.because(refused)
}

/// Refuses a request for a feature that farblock lacks.
fn unsupported(asked: bool, sentence: &str) -> Result<(), RpcError> {
    match asked {
        true => Err(RpcError::invalid().because(sentence)),
        false => Ok(()),
    }
}
