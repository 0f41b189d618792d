//! Moves the data of commands between PDUs and buffers.

use super::link::{Inline, Link, Outgoing};
use super::place::{TcpPlace, append};
use crate::transport::{Commands, Moving};
use farblock_proto::tcp::SlotId;
use farblock_proto::tcp::host_end::Grant;
use farblock_reactor::{Buffer, copy_anywhere};

/// Copies a command's received data into the operation's buffer.
pub(super) fn put(commands: &mut impl Commands<Link>, slot: SlotId, offset: u32, bytes: &[u8]) {
    let moving = in_flight(commands, slot);
    let start = moving.start + offset as usize;
    let TcpPlace::Here(buffer) = moving.place else {
        unreachable!("no other receive runs while the reactor has the buffer")
    };
    copy_anywhere(&mut buffer[start..start + bytes.len()], bytes);
}

/// Takes a command's buffer out of the table for a large receive. Returns the buffer and the start
/// of the command's data at `offset`. Returns `None` if the buffer is in use: the caller must copy
/// the data then.
pub(super) fn lend(
    commands: &mut impl Commands<Link>,
    slot: SlotId,
    offset: u32,
) -> Option<(Buffer, usize)> {
    let moving = in_flight(commands, slot);
    let start = moving.start + offset as usize;
    match std::mem::replace(moving.place, TcpPlace::Receiving) {
        TcpPlace::Here(buffer) => Some((buffer, start)),
        other => {
            *moving.place = other;
            None
        }
    }
}

/// Returns the place for a command's data from `offset` on. Returns `None` if the buffer is in use.
pub(super) fn place(
    commands: &mut impl Commands<Link>,
    slot: SlotId,
    offset: u32,
    length: u32,
) -> Option<&mut [u8]> {
    let moving = in_flight(commands, slot);
    let start = moving.start + offset as usize;
    match moving.place {
        TcpPlace::Here(buffer) => Some(&mut buffer[start..start + length as usize]),
        _ => None,
    }
}

/// Puts a buffer back after a receive.
pub(super) fn take_back(commands: &mut impl Commands<Link>, slot: SlotId, buffer: Buffer) {
    // After a loss, the command's slot is empty. Then find the operation by its buffer: the
    // event loop receives into only one buffer at a time.
    let index = commands.command(slot).map(|moving| moving.index);
    let lent = |place: &TcpPlace| matches!(place, TcpPlace::Receiving);
    let index = index.or_else(|| commands.find(lent)).expect("a buffer was in use");
    returned(commands, index.into(), buffer);
}

/// Puts a buffer back after the send of its payload.
pub(super) fn returned(commands: &mut impl Commands<Link>, tag: u64, buffer: Buffer) {
    let index = tag as u32;
    *commands.place(index) = TcpPlace::Here(buffer);
    commands.finish(index);
}

/// Handles the controller's request for data (R2T).
pub(super) fn wanted(commands: &mut impl Commands<Link>, grant: Grant, out: &mut Outgoing) {
    let mut moving = in_flight(commands, grant.slot);
    moving.part.granted += grant.length;
    if !send_granted(&mut moving, grant, out) {
        out.deferred.push(grant.slot);
    }
}

/// Sends deferred data whose buffers are in the table again.
pub(super) fn resume(out: &mut Outgoing, commands: &mut impl Commands<Link>) {
    let mut at = 0;
    while at < out.deferred.len() {
        let is_sent = commands.command(out.deferred[at]).is_none_or(|mut moving| {
            let grant = moving.part.deferred.take();
            grant.is_none_or(|grant| send_granted(&mut moving, grant, out))
        });
        if is_sent {
            out.deferred.swap_remove(at);
        } else {
            at += 1;
        }
    }
}

/// Sends the data that the controller requested. If an earlier send still uses the buffer, defers
/// the request and returns false.
fn send_granted(moving: &mut Moving<'_, Link>, mut grant: Grant, out: &mut Outgoing) -> bool {
    if !moving.place.is_at_hand(out) {
        moving.part.deferred = Some(grant);
        return false;
    }
    let (index, start) = (moving.index, moving.start);
    while let Some(range) = out.end.data_header(&mut grant, &mut Inline(&mut out.batch)) {
        append(moving.place, index, start + range.start..start + range.end, out);
    }
    true
}

fn in_flight(commands: &mut impl Commands<Link>, slot: SlotId) -> Moving<'_, Link> {
    commands.command(slot).expect("the protocol reports only commands in flight")
}
