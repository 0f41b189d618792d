//! SPDK's JSON-RPC, for clients that know nothing else: `spdk-rpc`, CSI drivers, scripts.
//!
//! **What it is.** [`SpdkRpc`] answers SPDK's methods about a target that is steered by a
//! [`Steering`]; [`serve_spdk`] offers it on a Unix socket that only its owner can open. Numbers
//! and words of errors are SPDK's, since clients match on them; `data` has a sentence besides.
//!
//! **Contract.** Whatever changes the target is a change of its document. What SPDK has and a
//! document has not is kept here, as long as the process lives: bdevs that no namespace uses, which
//! subsystem a listener was added to, and the names of keys.
//!
//! **Not implemented.** A listener of one subsystem only: hosts reach every subsystem at every
//! address, and an ANA state is one for all of them. Metadata, protection information.

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

use crate::audit::AUDIT;
use crate::live::Open;
use crate::patience::Patience;
use crate::steering::{Refused, Reread, Steering};
use farblock_state::{Document, Host};
use message::{Answer, INVALID_STATE, METHOD_NOT_FOUND, Params, RpcError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// See the module's text.
pub struct SpdkRpc {
    steering: Arc<Steering>,
    bdevs: Arc<Bdevs>,
    /// Held through a call: one after the other.
    table: Mutex<Table>,
    seen: Mutex<Seen>,
}

/// The version of the document that the call under way has looked at.
#[derive(Default)]
struct Seen {
    etag: String,
    /// Others changed it before the call could.
    is_stale: bool,
}

/// How often a call begins anew because others have changed the document meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// What a document has no place for.
struct Table {
    opener: Arc<dyn Open>,
    patience: Patience,
    /// What the transport was made with, if it was.
    transport: Option<serde_json::Map<String, serde_json::Value>>,
    subsystems: BTreeMap<String, Extra>,
    /// Listeners that were opened here.
    opened: BTreeSet<SocketAddr>,
    /// Where keys are, by the names that clients have given them.
    keys: BTreeMap<String, String>,
    /// How many bdevs have got a name here.
    named: u64,
}

/// What a document has no place for, of a subsystem.
#[derive(Clone, Default)]
struct Extra {
    /// Where clients have said that it listens; everywhere, if none made it.
    listeners: Option<BTreeSet<SocketAddr>>,
    /// Hosts that are listed while any host may connect.
    dormant_hosts: BTreeMap<String, Host>,
    max_namespaces: Option<u32>,
}

/// A method: its name, whether SPDK has it only before it is initialized, and what does it.
struct Method {
    name: &'static str,
    at_start: bool,
    call: Call,
}

type Call = fn(&SpdkRpc, &mut Table, Params) -> Answer;

impl SpdkRpc {
    /// Answers about the target of `steering`, whose opener is [`Bdevs::opening`] of `bdevs`.
    /// `opener` opens what bdevs are made of.
    pub fn new(steering: Arc<Steering>, bdevs: Arc<Bdevs>, opener: Arc<dyn Open>) -> Self {
        let shares = !steering.document().0.subsystems.is_empty();
        let table = Table {
            opener,
            patience: Patience::default(),
            transport: shares.then(serde_json::Map::new),
            subsystems: BTreeMap::new(),
            opened: BTreeSet::new(),
            keys: BTreeMap::new(),
            named: 0,
        };
        Self { steering, bdevs, table: Mutex::new(table), seen: Mutex::default() }
    }

    /// The answer to a request or a batch; none if nobody waits for one.
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

    /// What a call decides on is a look at the document: if others have changed that before the
    /// call does, it looks again.
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

    /// Changes the document that the call has looked at.
    fn change(&self, edit: impl FnOnce(&mut Document)) -> Result<(), Refused> {
        self.change_and_read(&Reread::Nothing, edit)
    }

    /// The same, with key files that are read again.
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
                seen.etag = changed.etag;
                if !changed.steps.is_empty() {
                    let steps = changed.steps.join("; ");
                    tracing::info!(target: AUDIT, who = "a client of SPDK's", "changed: {steps}");
                }
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
    /// Others may have taken a subsystem away, or a listener, or listed its hosts.
    fn forget_what_is_gone(&mut self, document: &Document) {
        let stays = |nqn: &String| view::is_discovery(nqn) || document.subsystems.contains_key(nqn);
        self.subsystems.retain(|nqn, _| stays(nqn));
        // Where others have said meanwhile who may connect, nobody waits to be listed.
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

/// A method that can be called now.
const fn method(name: &'static str, call: Call) -> Method {
    Method { name, at_start: false, call }
}

/// A change that was refused, as what `error` says.
fn refused(error: RpcError) -> impl FnOnce(Refused) -> RpcError {
    |refused| error.because(refused)
}

/// Refuses what farblock has not, if it is asked for.
fn unsupported(asked: bool, sentence: &str) -> Result<(), RpcError> {
    match asked {
        true => Err(RpcError::invalid().because(sentence)),
        false => Ok(()),
    }
}
