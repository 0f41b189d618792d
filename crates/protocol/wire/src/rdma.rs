//! Private data of NVMe/RDMA connections (RDMA 1.0c, "Fabric Dependent Settings"). Keyed SGL
//! descriptors are in [`sgl`](crate::sgl).
//!
//! The connection manager of InfiniBand and RoCE pads the data with zeroes to its own length, so a
//! receiver ignores bytes behind the structure. Capsules have no header. A message is a submission
//! queue entry followed by in-capsule data, or a completion queue entry.

use zerocopy::little_endian::U16;

/// The only format of private data (RECFMT).
pub const RECFMT_1_0: u16 = 0;
/// HRQSIZE of the admin queue, and the largest depth of an admin queue, in entries (RDMA 1.0c,
/// figure "RDMA_CM_REQUEST Private Data Format").
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// ICDOFF, in units of 16 bytes: in-capsule data directly follows the submission queue entry.
pub const IN_CAPSULE_OFFSET: u16 = 0;
/// MSDBD: the number of SGL descriptors that a controller accepts in one command.
pub const MAX_DESCRIPTORS: u8 = 16;
/// The well-known port of NVMe/RDMA (RDMA_PS_TCP).
pub const PORT_IO: u16 = 4420;

layout! {
    /// The host's data in a connection request (RDMA 1.0c, figure "RDMA_CM_REQUEST Private Data
    /// Format").
    pub struct CmRequest, 32 {
        0 recfmt: U16, "Record format (RECFMT), 0.";
        2 qid: U16, "Queue identifier (QID): 0 is the admin queue.";
        4 hrqsize: U16, "Entries of the host's RDMA receive queue, 1's-based (HRQSIZE).";
        6 hsqsize_z: U16, "Entries of the host's RDMA send queue, 0's-based (HSQSIZE).";
        8 cntlid: U16, "Controller ID of an I/O queue; older hosts send 0 (CNTLID).";
        10 rsvd_10: [u8; 22], "Reserved.";
    }
}

layout! {
    /// The controller's data when it accepts (RDMA 1.0c, figure "RDMA_CM_ACCEPT Private Data
    /// Format").
    pub struct CmAccept, 32 {
        0 recfmt: U16, "Record format (RECFMT), 0.";
        2 crqsize: U16, "Entries of the controller's RDMA receive queue, 1's-based (CRQSIZE).";
        4 rsvd_4: [u8; 28], "Reserved.";
    }
}

layout! {
    /// The controller's data when it rejects (RDMA 1.0c, figure "RDMA_CM_REJECT Private Data
    /// Format").
    pub struct CmReject, 4 {
        0 recfmt: U16, "Record format (RECFMT), 0.";
        2 sts: U16, "Reason (STS): see [`RejectStatus`].";
    }
}

open_code! {
    /// Reason of a rejection, STS (RDMA 1.0c, figure "RDMA_CM_REJECT Private Data Format").
    pub struct RejectStatus(u16), "reject status" {
        INVALID_LENGTH = 0x01, "invalid private data length";
        INVALID_RECFMT = 0x02, "invalid RECFMT";
        INVALID_QID = 0x03, "invalid QID";
        INVALID_HSQSIZE = 0x04, "invalid HSQSIZE";
        INVALID_HRQSIZE = 0x05, "invalid HRQSIZE";
        NO_RESOURCES = 0x06, "no RDMA resources";
        INVALID_IRD = 0x07, "invalid number of RDMA READs to answer (IRD)";
        INVALID_ORD = 0x08, "invalid number of RDMA READs to start (ORD)";
    }
}

impl CmRequest {
    /// Creates a request for queue `qid` of a controller, with queues of `hrqsize` and `hsqsize_z +
    /// 1` entries.
    pub fn new(qid: u16, hrqsize: u16, hsqsize_z: u16, cntlid: u16) -> Self {
        Self {
            qid: U16::new(qid),
            hrqsize: U16::new(hrqsize),
            hsqsize_z: U16::new(hsqsize_z),
            cntlid: U16::new(cntlid),
            ..Self::zeroed()
        }
    }
}

impl CmAccept {
    /// Creates the response of a controller with a receive queue of `crqsize` entries.
    pub fn new(crqsize: u16) -> Self {
        Self { crqsize: U16::new(crqsize), ..Self::zeroed() }
    }
}

impl CmReject {
    /// Creates a rejection with the given reason.
    pub fn new(status: RejectStatus) -> Self {
        Self { sts: U16::new(status.0), ..Self::zeroed() }
    }

    /// Returns the reason of the rejection.
    pub fn status(&self) -> RejectStatus {
        RejectStatus(self.sts.get())
    }
}
