//! The messages between controller and agent: a line of JSON each.
//!
//! The controller sends requests, and each has one final answer. While an agent runs or meters a
//! load, it reports its speed five times a second, so that the controller notices an agent that
//! hangs; the controller may [cancel the load](Ask::Cancel). When the controller disconnects, the
//! agent stops its work.

use farblock_bench::{Machine, Pattern, RecordedLatencies};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Version of these messages: both ends must have the same.
pub const VERSION: u32 = 5;

/// A request of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first request: identify yourself.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The token, for agents that listen.
        #[serde(default)]
        token: Option<String>,
    },
    /// Report your clock.
    Clock,
    /// Share these drives, instead of the current ones.
    Share(Share),
    /// Stop sharing, and close the drives.
    Unshare,
    /// Drive load on one of the shared drives inside the agent, without a network.
    Alone {
        /// The drive's index in [`Share::drives`].
        drive: usize,
        /// The load.
        load: Load,
    },
    /// Report the processor time that you use between these times of your clock.
    Meter {
        /// The start.
        start_ns: u64,
        /// The end.
        end_ns: u64,
        /// The process to measure instead of the agent, on the agent's machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<u32>,
    },
    /// Connect these clients, instead of the current ones.
    Connect {
        /// The clients; each is a separate host.
        clients: Vec<Client>,
    },
    /// Offer the disks of these clients on sockets (vhost-user), instead of the current ones.
    Offer {
        /// The clients; each is a virtual machine, and a separate host.
        clients: Vec<Client>,
    },
    /// Drive load with the clients that are connected.
    Load(Load),
    /// Stop the load, and drop its results.
    Cancel,
    /// Write, read and compare until [`Ask::EndVerify`], with these clients.
    Verify {
        /// The clients; each is a separate host, with a disk that outlives its connections.
        clients: Vec<Client>,
        /// Threads of each client.
        writers: usize,
    },
    /// Report the verify's results since the last request.
    Look,
    /// Read all data once more, compare it, and stop.
    EndVerify,
}

/// A target to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The subsystem's name.
    pub nqn: String,
    /// The listening address; with port 0 the system picks a free one.
    pub address: SocketAddr,
    /// The addresses that the other nodes' targets had before; without them they use the ports
    /// after `address`'s, or free ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<SocketAddr>,
    /// Drives, as `farblock serve` names them, or a disk of another target: `nvme+tcp://`.
    pub drives: Vec<String>,
    /// The number of stripe sets, formed from the drives in order: each is a namespace. 0: no sets,
    /// each drive is a namespace.
    pub sets: usize,
    /// Whether to form one set from the drives of each NUMA node instead, if there are several. The
    /// node's processors serve it, as a subsystem at its own port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_node: bool,
    /// Bytes in a block.
    pub block_size: u32,
    /// The range of the target's controller identifiers, if other targets have the same subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_ids: Option<[u16; 2]>,
    /// Whether to share the single drive over iSCSI instead of NVMe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub iscsi: bool,
}

/// A shared namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// An `nvme+tcp://` URL, or an iSCSI address.
    pub url: String,
    /// The namespace's drives, as indexes in [`Share::drives`].
    pub drives: Vec<usize>,
    /// The NUMA node of all these drives, whose processors serve the namespace; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The processors of that node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The host's NQN.
    pub hostnqn: String,
    /// The client's disk: `nvme+tcp://`, or `iscsi://ADDRESS:PORT/NAME/LUN`.
    pub url: String,
    /// I/O queues that the client needs.
    pub queues: u16,
    /// I/Os in flight in each queue.
    pub depth: u16,
    /// The part of the disk that the client verifies: the index, from 0, and the number of equal
    /// parts.
    pub part: [u32; 2],
    /// The virtual machine's ring through which the client uses its disk; `None`: it uses the disk
    /// directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Vm>,
    /// Further paths to the same disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
}

/// A vhost-user disk, driven through rings in memory as a guest's driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Limit for the requests in a ring.
    pub depth: u16,
    /// Limit for the data of a request.
    pub request_bytes: u32,
}

/// A load and its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The pattern of each client.
    pub pattern: Pattern,
    /// The start, by the agent's clock; `None`: at once.
    pub start_ns: Option<u64>,
    /// Time at the start that is not measured.
    pub ramp_ms: u64,
    /// Measured time.
    pub runtime_ms: u64,
    /// The seed of random addresses.
    pub seed: u64,
}

/// An answer of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say {
    /// The agent's identity.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The agent's machine.
        machine: Machine,
    },
    /// The controller is refused.
    Refused {
        /// The reason.
        why: String,
    },
    /// The clock, in nanoseconds since the agent's start.
    Clock {
        /// Nanoseconds.
        ns: u64,
    },
    /// The shared namespaces.
    Sharing {
        /// The listening addresses of the target, and then of the other nodes' targets.
        addresses: Vec<SocketAddr>,
        /// The namespaces, in order.
        namespaces: Vec<Shared>,
        /// Why the sets are not divided by NUMA node, if that was requested and not possible.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_by_node: Option<String>,
    },
    /// The sockets of the offered disks, in their clients' order.
    Offered {
        /// Unix sockets, in folders that only this user can open.
        sockets: Vec<PathBuf>,
    },
    /// Processor time.
    Used {
        /// Nanoseconds.
        ns: u64,
    },
    /// The request is done.
    Done,
    /// The current speed; an answer follows.
    Progress {
        /// I/Os per second of all clients.
        iops: f64,
    },
    /// The results of a load.
    Measured(Measured),
    /// The results of a verify.
    Looked(Looked),
    /// The request failed.
    Failed {
        /// The reason, as a sentence.
        why: String,
    },
}

/// The joint results of an agent's clients.
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
    /// Processor time of the agent's process while the load is measured.
    pub cpu_ns: u64,
    /// The measured time, in seconds.
    pub seconds: f64,
}

/// The results of a verify.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// Blocks read and compared since the verify started.
    pub reads: u64,
    /// Writes acknowledged.
    pub writes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks whose content differed from the acknowledged one.
    pub lost: u64,
    /// The longest operation since the last check, including those that still wait, in
    /// microseconds.
    pub longest_us: u64,
    /// Writers that wait for an operation which started before the last check.
    pub waiting: u64,
    /// Number of connected paths.
    pub live: u64,
    /// Number of all paths.
    pub paths: u64,
    /// The first failure.
    pub wrong: Option<String>,
}
