//! A host's queue pair without a network: what was submitted, what came back.

use farblock_proto::host::command::{Command, Data};
use farblock_proto::tcp::host_end::{Event, HostEnd};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::Cqe;

/// Data up to this many bytes goes in the capsule; more than that, so that both ways are used.
const IN_CAPSULE_BYTES: u32 = 1024;

/// A finished command.
pub(crate) struct Done {
    pub(crate) slot: SlotId,
    pub(crate) cqe: Cqe,
    /// What was read.
    pub(crate) data: Vec<u8>,
}

/// See the module's text.
pub(crate) struct Queue {
    end: HostEnd,
    pub(crate) out: Vec<u8>,
    /// What each slot's command reads into or writes from.
    buffers: Vec<Option<Vec<u8>>>,
    pub(crate) initialized: bool,
}

impl Queue {
    pub(crate) fn new(digests: Digests, depth: u16) -> Self {
        let end = HostEnd::new(digests, depth);
        let mut out = Vec::new();
        end.start(&mut out);
        Self { end, out, buffers: vec![None; usize::from(depth)], initialized: false }
    }

    /// Submits a command in the first free slot.
    pub(crate) fn submit(&mut self, command: &Command, data: Vec<u8>) -> Option<SlotId> {
        let index = self.buffers.iter().position(Option::is_none)?;
        let slot = SlotId(index as u16);
        let (sqe, transfer) = command.place(IN_CAPSULE_BYTES);
        self.end.submit(slot, &sqe, transfer, &mut self.out);
        if let farblock_proto::tcp::host_end::Transfer::InCapsule(_) = transfer {
            self.out.extend_from_slice(&data);
            self.out.extend(self.end.data_digest(&data).into_iter().flatten());
        }
        self.buffers[index] = Some(match command.data {
            Data::FromController(length) => vec![0xa5; length as usize],
            _ => data,
        });
        Some(slot)
    }

    /// Bytes arrived. `None` when the controller ended the connection.
    pub(crate) fn feed(&mut self, mut input: &[u8]) -> Option<Vec<Done>> {
        let mut done = Vec::new();
        while let Some(event) = self.end.next(&mut input).expect("our own target keeps the rules") {
            match event {
                Event::Initialized => self.initialized = true,
                Event::Data { slot, offset, bytes } => {
                    let buffer = self.buffers[usize::from(slot.0)].as_mut().expect("in flight");
                    buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Event::Wanted(mut grant) => {
                    while let Some(range) = self.end.data_header(&mut grant, &mut self.out) {
                        let buffer = &self.buffers[usize::from(grant.slot.0)];
                        let piece = &buffer.as_ref().expect("in flight")[range];
                        self.out.extend_from_slice(piece);
                        self.out.extend(self.end.data_digest(piece).into_iter().flatten());
                    }
                }
                Event::Completed { slot, cqe, intact, .. } => {
                    assert!(intact, "the pipes do not change bytes");
                    let data = self.buffers[usize::from(slot.0)].take().expect("in flight");
                    done.push(Done { slot, cqe, data });
                }
                Event::Terminated { .. } => return None,
            }
        }
        Some(done)
    }
}
