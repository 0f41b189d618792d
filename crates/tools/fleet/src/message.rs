//! The messages between the controller of a fleet and its agents. Each is a line of JSON.
//!
//! The controller sends requests, and each request has one final answer. While an agent runs a load
//! or measures processor time, it sends [`Say::Progress`] five times a second. So the controller
//! notices an agent that hangs. The controller may [cancel the load](Ask::Cancel). When the
//! controller disconnects, the agent stops its work.

use farblock_bench::{Machine, Pattern, RecordedLatencies};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The version of these messages, which must be the same at both ends.
pub const VERSION: u32 = 5;

/// A request of a controller to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first request: the agent must identify itself.
    Hello {
        /// The version: [`VERSION`].
        version: u32,
        /// The token, for agents that listen.
        #[serde(default)]
        token: Option<String>,
    },
    /// The agent must report its clock.
    Clock,
    /// The agent must share these drives, instead of its current ones.
    Share(Share),
    /// The agent must stop sharing, and close the drives.
    Unshare,
    /// The agent must run a load on one of its shared drives, without a network.
    Alone {
        /// The index of the drive in [`Share::drives`].
        drive: usize,
        /// The load.
        load: Load,
    },
    /// The agent must report the processor time that it uses between these times of its clock.
    Meter {
        /// The start, in nanoseconds.
        start_ns: u64,
        /// The end, in nanoseconds.
        end_ns: u64,
        /// The ID of a process on the agent's machine to measure instead of the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<u32>,
    },
    /// The agent must connect these clients, instead of its current ones.
    Connect {
        /// The clients. Each is a separate host.
        clients: Vec<Client>,
    },
    /// The agent must offer the disks of these clients on sockets (vhost-user), instead of its
    /// current ones.
    Offer {
        /// The clients. Each is a virtual machine, and a separate host.
        clients: Vec<Client>,
    },
    /// The agent must run a load with the connected clients.
    Load(Load),
    /// The agent must stop the load, and drop its results.
    Cancel,
    /// The agent must write, read and compare with these clients, until [`Ask::EndVerify`].
    Verify {
        /// The clients. Each is a separate host, whose disk outlives its connections.
        clients: Vec<Client>,
        /// The number of threads of each client.
        writers: usize,
    },
    /// The agent must report the results of the verification so far.
    Look,
    /// The agent must read all data once more, compare it, and stop.
    EndVerify,
}

/// A target that an agent must start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The name of the subsystem.
    pub nqn: String,
    /// The address to listen on. For port 0, the system chooses a free port.
    pub address: SocketAddr,
    /// The previous addresses of the targets of the other NUMA nodes. Without previous addresses,
    /// these targets use the ports after that of `address`, or free ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<SocketAddr>,
    /// The drives: specs as for `farblock serve`, or a disk of another target (`nvme+tcp://`).
    pub drives: Vec<String>,
    /// The number of stripe sets to form from the drives, in order. Each set is a namespace. If it
    /// is 0, each drive is a namespace.
    pub sets: usize,
    /// Whether to form one set from the drives of each NUMA node instead, if there are several
    /// nodes. The processors of the node serve the set, as a subsystem at its own port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_node: bool,
    /// The block size in bytes.
    pub block_size: u32,
    /// The range of controller identifiers of the target, if other targets have the same subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_ids: Option<[u16; 2]>,
    /// Whether to share the only drive over iSCSI instead of NVMe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub iscsi: bool,
}

/// A namespace that the target of an agent shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// The `nvme+tcp://` URL, or the iSCSI address.
    pub url: String,
    /// The drives of the namespace, as indexes in [`Share::drives`].
    pub drives: Vec<usize>,
    /// The NUMA node of all these drives, whose processors serve the namespace. `None` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The processors of this NUMA node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<usize>,
}

/// A host, which an agent connects to one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The NQN of the host.
    pub hostnqn: String,
    /// The disk of the client: `nvme+tcp://`, or `iscsi://ADDRESS:PORT/NAME/LUN`.
    pub url: String,
    /// The number of I/O queues that the client needs.
    pub queues: u16,
    /// The number of I/Os in flight in each queue.
    pub depth: u16,
    /// The part of the disk that the client verifies: the index from 0, and the number of equal
    /// parts.
    pub part: [u32; 2],
    /// The disk of a virtual machine through which the client uses its namespace. `None` if the
    /// client uses the namespace directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Vm>,
    /// The URLs of further paths to the same disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
}

/// A vhost-user disk, which the agent drives through rings in memory, like the driver of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The maximum number of requests in a ring.
    pub depth: u16,
    /// The maximum size of a request, in bytes.
    pub request_bytes: u32,
}

/// A load and its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The pattern of each client.
    pub pattern: Pattern,
    /// The start in nanoseconds of the agent's clock. `None` means at once.
    pub start_ns: Option<u64>,
    /// The time of unmeasured load at the start, in milliseconds.
    pub ramp_ms: u64,
    /// The measured time, in milliseconds.
    pub runtime_ms: u64,
    /// The seed of random addresses.
    pub seed: u64,
}

/// An answer of an agent to a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say {
    /// The identity of the agent.
    Hello {
        /// The version: [`VERSION`].
        version: u32,
        /// The machine of the agent.
        machine: Machine,
    },
    /// The agent refuses the controller.
    Refused {
        /// The reason.
        why: String,
    },
    /// The clock of the agent.
    Clock {
        /// The time since the start of the agent, in nanoseconds.
        ns: u64,
    },
    /// The namespaces that the agent shares.
    Sharing {
        /// The address of the target, followed by the addresses of the other NUMA nodes' targets.
        addresses: Vec<SocketAddr>,
        /// The namespaces, in order.
        namespaces: Vec<Shared>,
        /// The reason why the sets are not divided by NUMA node, if that was requested and is not
        /// possible.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_by_node: Option<String>,
    },
    /// The sockets of the offered disks, in the order of their clients.
    Offered {
        /// The Unix sockets, in folders that only this user can open.
        sockets: Vec<PathBuf>,
    },
    /// The answer to [`Ask::Meter`].
    Used {
        /// The processor time in nanoseconds.
        ns: u64,
    },
    /// The agent has executed the request.
    Done,
    /// The current speed. The final answer follows later.
    Progress {
        /// The I/Os per second of all clients.
        iops: f64,
    },
    /// The results of a load.
    Measured(Measured),
    /// The results of a verification.
    Looked(Looked),
    /// The request failed.
    Failed {
        /// The reason, as a sentence.
        why: String,
    },
}

/// The results of all clients of an agent together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The number of reads that completed in the measured time.
    pub reads: u64,
    /// The number of writes that completed in the measured time.
    pub writes: u64,
    /// The sum of the I/Os per second of all clients.
    pub iops: f64,
    /// The latencies of all I/Os.
    pub latencies: RecordedLatencies,
    /// The processor time of the agent's process in the measured time, in nanoseconds.
    pub cpu_ns: u64,
    /// The measured time, in seconds.
    pub seconds: f64,
}

/// The results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// The number of blocks read and compared since the start of the verification.
    pub reads: u64,
    /// The number of acknowledged writes.
    pub writes: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of blocks whose content differed from the acknowledged content.
    pub lost: u64,
    /// The duration of the longest operation since the last check, including waiting operations, in
    /// microseconds.
    pub longest_us: u64,
    /// The number of writers that wait for an operation which started before the last check.
    pub waiting: u64,
    /// The number of connected paths.
    pub live: u64,
    /// The number of all paths.
    pub paths: u64,
    /// The first failure.
    pub wrong: Option<String>,
}
