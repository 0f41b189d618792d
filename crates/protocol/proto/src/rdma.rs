//! Admission of NVMe/RDMA connections by the private data of both ends.
//!
//! The two ends exchange private data when they connect a queue pair, before the Connect command.
//! The controller calls [`Admission::admit`]. The host calls [`Granted::parse`] or [`rejection`].

use core::fmt;
use core::mem::offset_of;
use farblock_wire::fabrics::{ConnectCommand, ConnectData};
use farblock_wire::rdma::{CmAccept, CmReject, CmRequest, RECFMT_1_0, RejectStatus};

use crate::controller::Refusal;
use crate::ids::QueueId;

/// Smallest number of entries of a queue. Connect refuses smaller queues.
const MIN_ENTRIES: u16 = 2;

/// The controller's limits for a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Largest I/O queue identifier.
    pub max_io_queues: u16,
    /// Largest number of entries of a queue, a limit of the controller and its device; at least 2.
    pub max_entries: u16,
    /// Whether the controller has resources for another queue pair.
    pub has_resources: bool,
}

/// The RDMA READs of one end of a connection. The connection manager transmits both numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reads {
    /// READs that this end can answer at the same time (IRD, `responder_resources`).
    pub answers: u8,
    /// READs that this end may have in flight (ORD, `initiator_depth`).
    pub starts: u8,
}

/// The queue of a connection request. The Connect command must repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The identifier of the queue.
    pub queue: QueueId,
    /// The controller identifier of an I/O queue. 0 from older hosts; the admin queue has none yet.
    pub cntlid: u16,
}

impl Announced {
    /// Checks that a Connect command is for the announced queue.
    ///
    /// # Errors
    /// Returns the completion for the Connect command. It names the parameter that differs.
    pub fn check(&self, command: &ConnectCommand, data: &ConnectData) -> Result<(), Refusal> {
        if command.qid.get() != self.queue.0 {
            return Err(Refusal::in_command(offset_of!(ConnectCommand, qid)));
        }
        if self.queue != QueueId(0) && ![0, data.cntlid.get()].contains(&self.cntlid) {
            return Err(Refusal::in_data(offset_of!(ConnectData, cntlid)));
        }
        Ok(())
    }
}

/// An admitted connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The queue that the host has announced.
    pub announced: Announced,
    /// Number of entries of the queue: the smallest of both ends' limits. The controller posts one
    /// receive for each entry.
    pub entries: u16,
    /// Number of RDMA READs that the controller may have in flight.
    pub reads: u8,
}

impl Admission {
    /// Checks a host's private data, and the RDMA READs of the host and of the controller's device.
    ///
    /// A host may announce more READs than the controller's device can answer: over RDMA, only
    /// controllers start READs. If the device can answer none, a host that announces any is
    /// rejected.
    ///
    /// # Errors
    /// Returns the status for the rejection. Invalid data takes precedence over missing resources.
    pub fn admit(
        data: &[u8],
        host: Reads,
        own: Reads,
        offer: &Offer,
    ) -> Result<Self, RejectStatus> {
        let request = CmRequest::parse(data).ok_or(RejectStatus::INVALID_LENGTH)?;
        if request.recfmt.get() != RECFMT_1_0 {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        let queue = QueueId(request.qid.get());
        if queue.0 > offer.max_io_queues {
            return Err(RejectStatus::INVALID_QID);
        }
        let sends = request.hsqsize_z.get().saturating_add(1);
        if sends < MIN_ENTRIES {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        let receives = request.hrqsize.get();
        if receives < MIN_ENTRIES {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        // A controller fetches the data of a write with RDMA READs, so a host that can answer none
        // could not write.
        if host.answers == 0 {
            return Err(RejectStatus::INVALID_IRD);
        }
        // The device cannot answer a single READ of a host that wants to start some.
        if host.starts > 0 && own.answers == 0 {
            return Err(RejectStatus::INVALID_ORD);
        }
        if !offer.has_resources || own.starts == 0 {
            return Err(RejectStatus::NO_RESOURCES);
        }
        let entries = offer.max_entries.min(sends).min(receives);
        let reads = host.answers.min(own.starts);
        let announced = Announced { queue, cntlid: request.cntlid.get() };
        Ok(Self { announced, entries, reads })
    }

    /// Returns the private data of the controller's answer.
    #[must_use]
    pub fn answer(&self) -> CmAccept {
        CmAccept::new(self.entries)
    }
}

/// A controller's answer to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// Number of entries of the queue: the smaller of the host's request and the controller's
    /// grant.
    pub entries: u16,
}

/// The reason why a host cannot use a controller's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerError {
    /// The private data is too short.
    Length(usize),
    /// The private data has an unknown format.
    Format(u16),
    /// The controller's receive queue has too few entries.
    Entries(u16),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => {
                write!(f, "the peer does not speak NVMe/RDMA: its answer has {bytes} bytes")
            }
            Self::Format(format) => {
                write!(f, "the controller's answer has the unknown format {format}")
            }
            Self::Entries(entries) => {
                write!(f, "the controller grants a queue of {entries} entries, which are too few")
            }
        }
    }
}

impl core::error::Error for AnswerError {}

impl Granted {
    /// Checks a controller's private data. The host requested a queue of `requested` entries.
    pub fn parse(data: &[u8], requested: u16) -> Result<Self, AnswerError> {
        let answer = CmAccept::parse(data).ok_or(AnswerError::Length(data.len()))?;
        if answer.recfmt.get() != RECFMT_1_0 {
            return Err(AnswerError::Format(answer.recfmt.get()));
        }
        let entries = answer.crqsize.get();
        if entries < MIN_ENTRIES {
            return Err(AnswerError::Entries(entries));
        }
        Ok(Self { entries: entries.min(requested) })
    }
}

/// Returns the reason in the private data of a rejection; `None` if the peer is not an NVMe/RDMA
/// controller.
#[must_use]
pub fn rejection(data: &[u8]) -> Option<RejectStatus> {
    let reject = CmReject::parse(data).filter(|reject| reject.recfmt.get() == RECFMT_1_0)?;
    Some(reject.status()).filter(|status| status.0 != 0)
}
