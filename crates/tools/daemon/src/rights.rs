//! What takes rights about what the kernel has of an attachment: carried out by the process that
//! serves the disk or, where that has given its rights up, by a broker (docs/decisions/0055).

use super::folder::Folder;
use super::settings::Settings;
use super::ways;
use farblock_command::broker::{self, Broker, Message};
use farblock_command::error::{Failure, Result, os};
use rustix::fd::{AsFd, OwnedFd};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};

/// What the part of the command line is called; behind it comes the attachment's folder.
pub(super) const PART: &str = "device";

/// What one way needs rights for. It does not trust who asks: it knows itself what is this
/// attachment's.
pub(super) trait Privileged: Send {
    type Request: Serialize + DeserializeOwned;
    type Answer: Serialize + DeserializeOwned;

    /// Does it; with descriptors that came with the request, and perhaps one for the answer.
    fn carry_out(
        &mut self,
        request: Self::Request,
        descriptors: Vec<OwnedFd>,
    ) -> (Self::Answer, Option<OwnedFd>);
}

/// Who carries it out.
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

    /// Has it done.
    ///
    /// # Errors
    /// One sentence, if nobody does it any more.
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
        let request = serde_json::to_vec(&request).expect("our own types are JSON");
        let lent: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let answer = broker.ask(&request, &lent).map_err(|error| {
            format!("the process with the rights for it does not answer: {}", os(&error))
        })?;
        let Message { bytes, mut descriptors } = answer;
        let answer = serde_json::from_slice(&bytes);
        let answer = answer.map_err(|_| "the process with the rights for it is another version")?;
        Ok((answer, descriptors.pop()))
    }
}

/// The broker's process.
pub(super) fn run(folder: Folder) -> Result<()> {
    let settings: Option<Settings> = folder.read_json("settings.json");
    let settings = settings.ok_or_else(|| Failure::run("there are no settings to be read"))?;
    ways::with_rights(&folder, &settings)
}

/// Answers for one way until nobody can ask any more.
pub(super) fn answer<P: Privileged>(mut way: P) -> Result<()> {
    broker::run(|request| {
        let Ok(wanted) = serde_json::from_slice(&request.bytes) else {
            tracing::error!("the process that serves the disk asks for what there is not");
            return Message::new("null");
        };
        let (answer, descriptor) = way.carry_out(wanted, request.descriptors);
        let bytes = serde_json::to_vec(&answer).expect("our own types are JSON");
        Message { descriptors: descriptor.into_iter().collect(), ..Message::new(bytes) }
    })
}
