//! Opens many connections to one target, more than the queues that the target grants to one
//! controller. Then leaves them idle, or reads through each of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use farblock_block::{Command, Completion, Namespace, Op, Queue};
use farblock_host::{Controller, Options, RemoteNamespace, Url};
use farblock_reactor::{Buffer, Config, Reactor, TaskId};
use serde::{Deserialize, Serialize};

/// The number of I/O queues that farblock's target grants to one controller.
const QUEUES_EACH: usize = 128;
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Hold many connections to a target, and read through all of them in turn; prints JSON
#[derive(Args)]
pub(crate) struct HoldOptions {
    /// URL of a namespace, once for each address of its target; connections alternate between them
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Url>,
    /// Number of connections, each with one I/O queue
    #[arg(long, default_value_t = 100)]
    connections: usize,
    /// Reads in flight on all connections together; 0 leaves the connections idle
    #[arg(long, default_value_t = 0)]
    depth: usize,
    /// Entries of each queue
    #[arg(long, default_value_t = 128)]
    queue_depth: u16,
    /// Duration in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) connections: usize,
    /// The number of connections through which at least one read succeeded.
    pub(crate) served: usize,
    pub(crate) iops: f64,
}

/// A connection, which has one I/O queue.
struct Member {
    queue: Box<dyn Queue>,
    served: bool,
}

struct Holder {
    // Dropped before the reactor, because the queues belong to it.
    members: Vec<Member>,
    by_task: HashMap<TaskId, usize>,
    reactor: Reactor,
    namespaces: Vec<RemoteNamespace>,
    /// The index of the connection for the next read.
    next: usize,
    in_flight: usize,
    completed: u64,
}

pub(crate) fn hold(options: &HoldOptions) -> Result<(), String> {
    let run = Duration::try_from_secs_f64(options.seconds)
        .map_err(|_| format!("{} is not a number of seconds", options.seconds))?;
    let mut holder = Holder::connect(options)?;
    println!("holding {} connections", holder.members.len());
    let held = holder.read(options.depth, run)?;
    println!("{}", serde_json::to_string(&held).expect("the results can be written as JSON"));
    Ok(())
}

impl Holder {
    fn connect(options: &HoldOptions) -> Result<Holder, String> {
        let reactor = Reactor::new(&Config::default()).map_err(|error| error.to_string())?;
        let (mut members, mut by_task) = (Vec::new(), HashMap::new());
        let mut namespaces = Vec::new();
        let mut urls = options.urls.iter().cycle();
        while members.len() < options.connections {
            let queues = (options.connections - members.len()).min(QUEUES_EACH);
            let connect = Options {
                queues: queues as u16, // at most 128
                queue_depth: options.queue_depth,
                ..Options::default()
            };
            let url = urls.next().expect("the URLs repeat without end");
            let namespace = Controller::connect_url(url, &connect)
                .and_then(|controller| controller.namespace(url.namespace.unwrap_or(1)))
                .map_err(|error| error.to_string())?;
            for _ in 0..queues {
                let task = reactor.add_task();
                let queue = namespace.open(&reactor, task);
                let queue =
                    queue.map_err(|error| format!("connection {}: {error}", members.len() + 1))?;
                by_task.insert(task, members.len());
                members.push(Member { queue, served: false });
            }
            namespaces.push(namespace);
        }
        let (next, in_flight, completed) = (0, 0, 0);
        Ok(Holder { members, by_task, reactor, namespaces, next, in_flight, completed })
    }

    /// Keeps `depth` reads in flight. Uses the connections in turn.
    fn read(&mut self, depth: usize, run: Duration) -> Result<Held, String> {
        let block_bytes = self.namespaces[0].geometry().block_size;
        let blocks = (4096 / block_bytes).max(1);
        let buffer = || Buffer::new((blocks * block_bytes) as usize);
        let mut idle: Vec<Buffer> = (0..depth).map(|_| buffer()).collect();
        let (mut done, mut ready, mut touched) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        while start.elapsed() < run || self.in_flight > 0 {
            while start.elapsed() < run
                && let Some(buffer) = idle.pop()
            {
                touched.push(self.submit(blocks, buffer));
            }
            // Poll the connections with new reads, because some of these reads may be complete
            // already.
            for index in touched.drain(..) {
                self.collect(index, &mut done, &mut idle)?;
            }
            let left = run.saturating_sub(start.elapsed());
            let timeout = match self.in_flight {
                _ if start.elapsed() < run && !idle.is_empty() => Duration::ZERO,
                0 => left,
                _ => WAIT_LIMIT,
            };
            self.reactor.poll(Some(timeout), &mut ready).map_err(|error| error.to_string())?;
            for task in ready.drain(..) {
                if let Some(&index) = self.by_task.get(&task) {
                    self.collect(index, &mut done, &mut idle)?;
                }
            }
            if start.elapsed() > run + WAIT_LIMIT {
                return Err(format!("the target did not answer {} reads", self.in_flight));
            }
        }
        Ok(Held {
            connections: self.members.len(),
            served: self.members.iter().filter(|member| member.served).count(),
            iops: self.completed as f64 / run.as_secs_f64(),
        })
    }

    /// Submits a read to the next connection. Returns the index of that connection.
    fn submit(&mut self, blocks: u32, buffer: Buffer) -> usize {
        let index = self.next;
        self.next = (index + 1) % self.members.len();
        let op = Op::with(Command::Read, 0, blocks, Some(buffer), index as u64);
        self.members[index].queue.submit(op);
        self.in_flight += 1;
        index
    }

    fn collect(
        &mut self,
        index: usize,
        done: &mut Vec<Completion>,
        idle: &mut Vec<Buffer>,
    ) -> Result<(), String> {
        let member = &mut self.members[index];
        member.queue.poll(done);
        for completion in done.drain(..) {
            completion.result.map_err(|error| format!("connection {}: {error}", index + 1))?;
            member.served = true;
            self.in_flight -= 1;
            self.completed += 1;
            idle.extend(completion.buffer);
        }
        Ok(())
    }
}
