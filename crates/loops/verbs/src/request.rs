//! Work requests and their completions.

use std::fmt;
use std::ops::BitOr;

use crate::memory::Slice;

/// The accesses that a registration permits (`enum ibv_access_flags`). Reads by this process's own
/// requests need no permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(pub(crate) u32);

impl Access {
    /// The device may only read, for this process's own requests.
    pub const LOCAL_READ: Self = Self(0);
    /// Receives and READs of this process may write (`IBV_ACCESS_LOCAL_WRITE`).
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers with the key may write; needs `LOCAL_WRITE` too (`IBV_ACCESS_REMOTE_WRITE`).
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers with the key may read (`IBV_ACCESS_REMOTE_READ`).
    pub const REMOTE_READ: Self = Self(1 << 2);

    /// Whether peers have any access.
    pub(crate) fn is_remote(self) -> bool {
        self.permits(Self::REMOTE_READ) || self.permits(Self::REMOTE_WRITE)
    }

    /// Whether this value permits all accesses of `other`.
    #[must_use]
    pub fn permits(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The operation of a request on the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND: the bytes go to the peer's next receive.
    Send,
    /// SEND with Invalidate: the peer's device then also invalidates this key of the peer.
    SendWithInvalidate(u32),
    /// RDMA WRITE to the peer's memory.
    Write {
        /// Address in the peer's registration.
        address: u64,
        /// Key of the peer's registration.
        rkey: u32,
    },
    /// RDMA READ from the peer's memory.
    Read {
        /// Address in the peer's registration.
        address: u64,
        /// Key of the peer's registration.
        rkey: u32,
    },
}

/// The local bytes of a request for the send queue.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, in this order. The device reads or writes it until the completion.
    Registered(&'a [Slice]),
    /// Bytes that posting the request copies (`IBV_SEND_INLINE`), for SEND and WRITE. The bytes
    /// need not be registered.
    Inline(&'a [u8]),
}

/// A request for the send queue (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's identifier of the request, which its completion repeats (`wr_id`).
    pub id: u64,
    /// The operation to execute.
    pub operation: Operation,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// Whether success produces a completion (`IBV_SEND_SIGNALED`). Failure always does. A request
    /// without a completion occupies the queue until the caller polls the completion of a later
    /// request.
    pub signaled: bool,
    /// Whether the request starts only after all earlier READs have completed (`IBV_SEND_FENCE`).
    pub fence: bool,
}

impl<'a> SendRequest<'a> {
    /// A request that produces a completion, without a fence.
    #[must_use]
    pub fn new(id: u64, operation: Operation, slices: &'a [Slice]) -> Self {
        Self { id, operation, payload: Payload::Registered(slices), signaled: true, fence: false }
    }
}

/// A request for a receive queue (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// The caller's identifier of the request, which its completion repeats (`wr_id`).
    pub id: u64,
    /// The memory for one message, in this order.
    pub slices: &'a [Slice],
}

/// The operation that a completion reports. Valid only on success.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Completed {
    /// A SEND, with or without invalidate.
    #[default]
    Send,
    /// An RDMA WRITE.
    Write,
    /// An RDMA READ.
    Read,
    /// A receive.
    Receive,
    /// Another operation, by its code (`enum ibv_wc_opcode`).
    Other(u32),
}

/// A completion (`struct ibv_wc`). Only `id`, `status`, `vendor_error` and `qp_num` are valid after
/// an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The request's identifier.
    pub id: u64,
    /// Success, or the reason for the failure.
    pub status: Status,
    /// The completed operation.
    pub operation: Completed,
    /// The number of received or read bytes.
    pub bytes: u32,
    /// The number of the request's queue pair, because queue pairs may share a completion queue.
    pub qp_num: u32,
    /// The key that the peer's SEND with Invalidate has invalidated.
    pub invalidated: Option<u32>,
    /// The device's own code for an error.
    pub vendor_error: u32,
}

/// The outcome of a work request (`enum ibv_wc_status`). Unknown codes keep their value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)+) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($code);)+

            /// Whether the request succeeded.
            #[must_use]
            pub fn is_success(self) -> bool {
                self == Self::SUCCESS
            }

            fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "success";
    LOC_LEN_ERR = 1, "local length error";
    LOC_QP_OP_ERR = 2, "local queue pair operation error";
    LOC_PROT_ERR = 4, "local protection error";
    WR_FLUSH_ERR = 5, "work request flushed";
    BAD_RESP_ERR = 7, "bad response";
    LOC_ACCESS_ERR = 8, "local access error";
    REM_INV_REQ_ERR = 9, "remote invalid request";
    REM_ACCESS_ERR = 10, "remote access error";
    REM_OP_ERR = 11, "remote operation error";
    RETRY_EXC_ERR = 12, "transport retries exceeded";
    RNR_RETRY_EXC_ERR = 13, "receiver not ready";
    FATAL_ERR = 19, "fatal error";
    GENERAL_ERR = 21, "general error";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "work completion status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({}: {self})", self.0)
    }
}
