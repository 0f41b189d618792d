//! Posts requests and polls completions. Like the inline functions of the C header, calls the
//! provider (the device's driver library) through the device context.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::c_int;

use super::library::by_number;
use super::resources::{Cq, Srq};
use super::sys::*;
use crate::error::{PostError, VerbsError};
use crate::limits::{POLL_BATCH, POST_BATCH};
use crate::memory::Slice;
use crate::request::{
    Completed, Completion, Operation, Payload, ReceiveRequest, SendRequest, Status,
};

/// Converts slices to a C list. Both types have the same layout.
fn slice_list(slices: &[Slice]) -> (*mut ibv_sge, c_int) {
    // The library does not write to the list.
    (slices.as_ptr().cast_mut().cast(), slices.len().min(i32::MAX as usize) as c_int)
}

fn send_in_c(request: &SendRequest<'_>, inline: &mut ibv_sge) -> ibv_send_wr {
    let (opcode, remote_addr, rkey, invalidate_rkey) = match request.operation {
        Operation::Send => (IBV_WR_SEND, 0, 0, 0),
        Operation::SendWithInvalidate(key) => (IBV_WR_SEND_WITH_INV, 0, 0, key),
        Operation::Write { address, rkey } => (IBV_WR_RDMA_WRITE, address, rkey, 0),
        Operation::Read { address, rkey } => (IBV_WR_RDMA_READ, address, rkey, 0),
    };
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    let ((sg_list, num_sge), inline_flag) = match request.payload {
        Payload::Registered(slices) => (slice_list(slices), 0),
        Payload::Inline(bytes) => {
            // A queue pair accepts far fewer inline bytes than this limit, so it refuses the
            // request.
            let length = bytes.len().min(u32::MAX as usize) as u32;
            *inline = ibv_sge { addr: bytes.as_ptr() as u64, length, lkey: 0 };
            ((&raw mut *inline, c_int::from(length > 0)), IBV_SEND_INLINE)
        }
    };
    ibv_send_wr {
        wr_id: request.id,
        next: ptr::null_mut(),
        sg_list,
        num_sge,
        opcode,
        send_flags: flag(request.signaled, IBV_SEND_SIGNALED)
            | flag(request.fence, IBV_SEND_FENCE)
            | inline_flag,
        invalidate_rkey,
        remote_addr,
        rkey,
        _atomic: [0; 2],
        _xrc: 0,
        _bind: [0; 6],
    }
}

fn receive_in_c(request: &ReceiveRequest<'_>, _: &mut ibv_sge) -> ibv_recv_wr {
    let (sg_list, num_sge) = slice_list(request.slices);
    ibv_recv_wr { wr_id: request.id, next: ptr::null_mut(), sg_list, num_sge }
}

/// A work request in C that is part of a list.
trait Linked: Sized {
    fn set_next(&mut self, next: *mut Self);
}

impl Linked for ibv_send_wr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Linked for ibv_recv_wr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Posts requests in lists of [`POST_BATCH`]. `call` posts the list that starts at its first
/// argument. If the provider refuses a request, `call` stores that request's address in its second
/// argument.
fn post<R, W: Linked>(
    verb: &'static str,
    requests: &[R],
    to_c: impl Fn(&R, &mut ibv_sge) -> W,
    mut call: impl FnMut(*mut W, *mut *mut W) -> c_int,
) -> Result<(), PostError> {
    let mut list = [const { MaybeUninit::<W>::uninit() }; POST_BATCH];
    let mut inline = [ibv_sge { addr: 0, length: 0, lkey: 0 }; POST_BATCH];
    let inline_first = inline.as_mut_ptr();
    for (round, batch) in requests.chunks(POST_BATCH).enumerate() {
        let first = list.as_mut_ptr().cast::<W>();
        for (at, request) in batch.iter().enumerate() {
            // SAFETY: `at` is below the length of the array, and no other reference to this element
            // exists.
            let mut work = to_c(request, unsafe { &mut *inline_first.add(at) });
            if at + 1 < batch.len() {
                // Link to the next request. Its place exists, because the list has the length of a
                // batch.
                work.set_next(first.wrapping_add(at + 1));
            }
            // SAFETY: `at` is below the length of the list, which nothing else uses.
            unsafe { first.add(at).write(work) };
        }
        let mut refused = ptr::null_mut();
        let result = call(first, &mut refused);
        by_number(verb, result).map_err(|error| {
            // The provider sets this address to a request in the list, or leaves it null.
            let offset = (refused as usize).saturating_sub(first as usize) / size_of::<W>();
            let inside = offset.min(batch.len());
            PostError { posted: round * POST_BATCH + inside, error }
        })?;
    }
    Ok(())
}

/// Posts to the send queue of a live queue pair.
///
/// # Safety
/// `qp` stays alive during the call.
pub(super) unsafe fn send(qp: *mut ibv_qp, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
    let is_inline_read = |request: &SendRequest<'_>| {
        matches!(request.operation, Operation::Read { .. })
            && matches!(request.payload, Payload::Inline(_))
    };
    if requests.iter().any(is_inline_read) {
        // A READ cannot use inline bytes: it would write to memory that the caller only lets it
        // read.
        let error = VerbsError::refused("ibv_post_send", io::ErrorKind::InvalidInput);
        return Err(PostError { posted: 0, error });
    }
    // SAFETY: the queue pair is alive, and so is its context.
    let function = unsafe { (*(*qp).context).post_send };
    post("ibv_post_send", requests, send_in_c, |list, refused| match function {
        // SAFETY: the list is complete, slices and inline bytes live until the call returns, and
        // the keys make the device refuse memory that is not registered.
        Some(function) => unsafe { function(qp, list, refused) },
        None => libc::EOPNOTSUPP,
    })
}

/// Posts to the receive queue of a live queue pair.
///
/// # Safety
/// `qp` stays alive during the call, and has no shared receive queue.
pub(super) unsafe fn receive(
    qp: *mut ibv_qp,
    requests: &[ReceiveRequest<'_>],
) -> Result<(), PostError> {
    // SAFETY: the queue pair is alive, and so is its context.
    let function = unsafe { (*(*qp).context).post_recv };
    post("ibv_post_recv", requests, receive_in_c, |list, refused| match function {
        // SAFETY: as in `send`.
        Some(function) => unsafe { function(qp, list, refused) },
        None => libc::EOPNOTSUPP,
    })
}

pub(super) fn receive_shared(srq: &Srq, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
    // SAFETY: the queue keeps its context open.
    let function = unsafe { (*srq.context()).post_srq_recv };
    post("ibv_post_srq_recv", requests, receive_in_c, |list, refused| match function {
        // SAFETY: the queue is alive; otherwise as in `send`.
        Some(function) => unsafe { function(srq.raw(), list, refused) },
        None => libc::EOPNOTSUPP,
    })
}

pub(super) fn poll(cq: &Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
    // SAFETY: the queue keeps its context open.
    let Some(function) = (unsafe { (*cq.context()).poll_cq }) else {
        return Err(VerbsError::refused("ibv_poll_cq", io::ErrorKind::Unsupported));
    };
    let mut done = 0;
    while done < out.len() {
        let mut entries = [const { MaybeUninit::<ibv_wc>::zeroed() }; POLL_BATCH];
        let room = (out.len() - done).min(POLL_BATCH);
        // SAFETY: the queue is alive, and the array has room for `room` entries.
        let found = unsafe { function(cq.raw(), room as c_int, entries.as_mut_ptr().cast()) };
        let Ok(found) = usize::try_from(found) else {
            return Err(VerbsError::refused("ibv_poll_cq", io::ErrorKind::Other));
        };
        let found = found.min(room);
        for entry in &entries[..found] {
            // SAFETY: zeroes are a valid entry, also where the provider wrote nothing.
            out[done] = completion(unsafe { &*entry.as_ptr() });
            done += 1;
        }
        if found < room {
            break;
        }
    }
    Ok(done)
}

fn completion(entry: &ibv_wc) -> Completion {
    let status = Status(entry.status);
    let mut completion = Completion {
        id: entry.wr_id,
        status,
        qp_num: entry.qp_num,
        vendor_error: entry.vendor_err,
        ..Completion::default()
    };
    if status.is_success() {
        completion.operation = match entry.opcode {
            IBV_WC_SEND => Completed::Send,
            IBV_WC_RDMA_WRITE => Completed::Write,
            IBV_WC_RDMA_READ => Completed::Read,
            IBV_WC_RECV => Completed::Receive,
            other => Completed::Other(other),
        };
        completion.bytes = entry.byte_len;
        let is_invalidated = entry.wc_flags & IBV_WC_WITH_INV != 0;
        completion.invalidated = is_invalidated.then_some(entry.invalidated_rkey);
    }
    completion
}
