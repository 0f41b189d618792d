//! What controller and agent say to each other: a line of JSON each.
//!
//! The controller asks, and every question has one last answer. While a load runs or is metered,
//! the agent says five times a second how fast it is, so one that stands still is noticed, and the
//! controller may [call it off](Ask::Cancel). When the controller is gone, the agent ends what it
//! does for it.

use farblock_bench::{Machine, Pattern, RecordedLatencies};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Version of these messages: both ends have to have the same.
pub const VERSION: u32 = 5;

/// What a controller asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first: who is there?
    Hello {
        /// [`VERSION`].
        version: u32,
        /// For agents that listen.
        #[serde(default)]
        token: Option<String>,
    },
    /// What does your clock say?
    Clock,
    /// Share these drives, in place of what is shared.
    Share(Share),
    /// Share nothing any more, and let go of the drives.
    Unshare,
    /// Drive one of the shared drives here, without a network.
    Alone {
        /// Its place in [`Share::drives`].
        drive: usize,
        /// How.
        load: Load,
    },
    /// How much processor time do you use between these times of your clock?
    Meter {
        /// From.
        start_ns: u64,
        /// To.
        end_ns: u64,
        /// Not you: this process of your machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<u32>,
    },
    /// Connect these clients, in place of those that are connected.
    Connect {
        /// Each is a host of its own.
        clients: Vec<Client>,
    },
    /// Put up the disks of these clients on sockets (vhost-user), in place of those that are up.
    Offer {
        /// Each is a virtual machine, and a host of its own.
        clients: Vec<Client>,
    },
    /// Drive load with the clients that are connected.
    Load(Load),
    /// End the load, whatever was measured.
    Cancel,
    /// Write, read and compare until [`Ask::EndVerify`], as these clients.
    Verify {
        /// Each is a host of its own, with a disk that outlives its connections.
        clients: Vec<Client>,
        /// Threads of each.
        writers: usize,
    },
    /// What has verifying found since the last look?
    Look,
    /// Read everything once more, compare it, and end.
    EndVerify,
}

/// A target to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The subsystem's name.
    pub nqn: String,
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Where the targets of other nodes listened before, if there are some; else at the ports after
    /// that, or at free ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<SocketAddr>,
    /// Drives, as `farblock serve` names them, or of another target: `nvme+tcp://`.
    pub drives: Vec<String>,
    /// What stripe sets they form, one after the other: each is a namespace. 0: no sets, each
    /// drive is one.
    pub sets: usize,
    /// Where drives are at several nodes of the machine (NUMA), those of each form a set instead,
    /// which the node's processors serve, as a subsystem and at a port of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_node: bool,
    /// Bytes in a block.
    pub block_size: u32,
    /// Identifiers of its controllers, from and to, if other targets have the same subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_ids: Option<[u16; 2]>,
    /// By iSCSI instead of NVMe, the one drive there is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub iscsi: bool,
}

/// A namespace that is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// `nvme+tcp://`, or what is shared by iSCSI.
    pub url: String,
    /// The drives that it is made of, by their places in [`Share::drives`].
    pub drives: Vec<usize>,
    /// The node where all of them are, and whose processors serve it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// Those processors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its name.
    pub hostnqn: String,
    /// Its disk: `nvme+tcp://`, or `iscsi://ADDRESS:PORT/NAME/LUN`.
    pub url: String,
    /// I/O queues that it needs.
    pub queues: u16,
    /// I/Os in flight in each.
    pub depth: u16,
    /// What of its disk is its own when it verifies: this part, from 0, of so many equal ones.
    pub part: [u32; 2],
    /// It uses its disk through this; without, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Vm>,
    /// The same disk by other ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
}

/// A vhost-user disk, driven through rings in memory as the driver of a virtual machine's guest
/// does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Requests that are in a ring at once.
    pub depth: u16,
    /// Data of one at most.
    pub request_bytes: u32,
}

/// A load, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// What each client does.
    pub pattern: Pattern,
    /// When to begin, by the agent's clock; without, at once.
    pub start_ns: Option<u64>,
    /// Unmeasured.
    pub ramp_ms: u64,
    /// Measured.
    pub runtime_ms: u64,
    /// Where random addresses begin.
    pub seed: u64,
}

/// What an agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say {
    /// Here I am.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// What it runs on.
        machine: Machine,
    },
    /// You may not ask.
    Refused {
        /// Why.
        why: String,
    },
    /// The clock, in nanoseconds since it was started.
    Clock {
        /// Nanoseconds.
        ns: u64,
    },
    /// What is shared.
    Sharing {
        /// Where the target listens, and those of other nodes after it.
        addresses: Vec<SocketAddr>,
        /// The namespaces, in order.
        namespaces: Vec<Shared>,
        /// Why no node has a set of its own, if each was to have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_by_node: Option<String>,
    },
    /// Where the disks are, in their clients' order.
    Offered {
        /// Unix sockets, in folders that only this user can open.
        sockets: Vec<PathBuf>,
    },
    /// Processor time.
    Used {
        /// Nanoseconds.
        ns: u64,
    },
    /// It is done.
    Done,
    /// How fast it is now; an answer follows.
    Progress {
        /// I/Os per second of all clients.
        iops: f64,
    },
    /// What a load came to.
    Measured(Measured),
    /// What verifying found.
    Looked(Looked),
    /// It did not work.
    Failed {
        /// Why, as a sentence.
        why: String,
    },
}

/// What the clients of an agent measured together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// The sum of the clients' I/Os per second.
    pub iops: f64,
    /// All latencies.
    pub latencies: RecordedLatencies,
    /// Processor time of the agent's process in the measured time.
    pub cpu_ns: u64,
    /// The measured time.
    pub seconds: f64,
}

/// What verifying found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// Blocks read and compared since it began.
    pub reads: u64,
    /// Writes acknowledged.
    pub writes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks that held something else than what was acknowledged.
    pub lost: u64,
    /// The longest operation since the last look, those that still wait included, in microseconds.
    pub longest_us: u64,
    /// Writers that wait for an operation that began before the last look.
    pub waiting: u64,
    /// Paths that are connected.
    pub live: u64,
    /// Paths that should be.
    pub paths: u64,
    /// The first thing that was wrong.
    pub wrong: Option<String>,
}
