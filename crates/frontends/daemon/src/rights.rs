//! Privileged operations on an attachment's mounts and devices. If the server has dropped its
//! rights, a broker (a helper process that keeps them) performs the operations for it
//! (docs/decisions/0035).

use super::folder::Folder;
use super::settings::Settings;
use super::ways;
use farblock_program::broker::{self, Broker, Message};
use farblock_program::error::{Failure, Result, os};
use rustix::fd::{AsFd, OwnedFd};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};

/// The subcommand that starts this program as a broker. Its argument is the attachment's folder.
pub(super) const PART: &str = "device";

/// The privileged operations of one way to attach. An implementation does not trust requests: it
/// checks itself which mounts and devices belong to this attachment.
pub(super) trait Privileged: Send {
    type Request: Serialize + DeserializeOwned;
    type Answer: Serialize + DeserializeOwned;

    /// Performs a request, which may come with descriptors. Returns an answer, and a descriptor if
    /// the request opens one.
    fn carry_out(
        &mut self,
        request: Self::Request,
        descriptors: Vec<OwnedFd>,
    ) -> (Self::Answer, Option<OwnedFd>);
}

/// The performer of privileged operations: this process or a broker.
pub(super) enum Rights<P: Privileged> {
    Own(Mutex<P>),
    Broker(Arc<Broker>),
}

impl<P: Privileged> Rights<P> {
    pub(super) fn new(broker: Option<&Arc<Broker>>, own: P) -> Rights<P> {
        match broker {
            Some(broker) => Rights::Broker(Arc::clone(broker)),
            None => Rights::Own(Mutex::new(own)),
        }
    }

    /// Performs a request.
    ///
    /// # Errors
    /// Returns one sentence for users if the broker has exited.
    pub(super) fn ask(
        &self,
        request: P::Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(P::Answer, Option<OwnedFd>), String> {
        let broker = match self {
            Rights::Own(own) => {
                let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(own.carry_out(request, descriptors));
            }
            Rights::Broker(broker) => broker,
        };
        let request = serde_json::to_vec(&request).expect("a request serializes to JSON");
        let lent: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let answer = broker.ask(&request, &lent).map_err(|error| {
            format!("the privileged helper process does not answer: {}", os(&error))
        })?;
        let Message { bytes, mut descriptors } = answer;
        let answer = serde_json::from_slice(&bytes);
        let answer = answer.map_err(
            |_| "the privileged helper process has another version: detach and reattach the disk",
        )?;
        Ok((answer, descriptors.pop()))
    }
}

/// Runs the broker's process.
pub(super) fn run(folder: Folder) -> Result<()> {
    let settings: Option<Settings> = folder.read_json("settings.json");
    let settings =
        settings.ok_or_else(|| Failure::run("the settings of the attachment are unreadable"))?;
    ways::with_rights(&folder, &settings)
}

/// Answers the server's requests for privileged operations until the server exits.
pub(super) fn answer<P: Privileged>(mut way: P) -> Result<()> {
    broker::run(|request| {
        let Ok(wanted) = serde_json::from_slice(&request.bytes) else {
            tracing::error!("the server sent an unknown request");
            return Message::new("null");
        };
        let (answer, descriptor) = way.carry_out(wanted, request.descriptors);
        let bytes = serde_json::to_vec(&answer).expect("an answer serializes to JSON");
        Message { descriptors: descriptor.into_iter().collect(), ..Message::new(bytes) }
    })
}
