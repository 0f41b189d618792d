//! Hosts: each writes its own blocks and reads all. A block holds the number of its last write.
//!
//! Like a farblock host, a host repeats a write only when its last attempt has certainly ended: it
//! has an answer, its process is dead, or a later leader has begun. The oracle fails the run at a
//! read that returns less than was acknowledged before the read, or more than was ever written.

use super::disk::{BLOCKS, DiskOp};
use super::process::{Condition, Process};
use super::world::{Asked, Happening, MS, Pid, Step, World};
use crate::{MemberEvent, Outcome, Proposed};
use farblock_random::Random;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const HOSTS: usize = 3;

/// The number of reservation commands in flight for one namespace.
const ASKERS: usize = 3;

/// An operation of a host.
#[derive(Clone, Debug)]
pub(super) struct HostOp {
    pub(super) group: u32,
    pub(super) block: usize,
    /// The value to write; `None`: a read.
    pub(super) write: Option<u64>,
    /// The value that was acknowledged before the operation.
    pub(super) least: u64,
    /// The member that executes the operation, its process and its epoch; `None`: none yet.
    pub(super) at: Option<(usize, u64, u64)>,
    pub(super) token: u64,
}

#[derive(Default)]
pub(super) struct HostModel {
    pub(super) op: Option<HostOp>,
    /// The last value that this host sent to each of its blocks, by group and block.
    pub(super) written: BTreeMap<(u32, usize), u64>,
    pub(super) done: u64,
}

impl HostModel {
    /// Chooses the next operation. `acked`: the acknowledged values.
    pub(super) fn choose(
        &mut self,
        number: usize,
        groups: u32,
        random: &mut Random,
        acked: impl Fn(u32, usize) -> u64,
    ) {
        let group = 1 + random.below(u64::from(groups)) as u32;
        let writes = random.one_in(2);
        let own = |random: &mut Random| number + HOSTS * random.index(BLOCKS / HOSTS);
        let block = if writes { own(random) } else { random.index(BLOCKS) };
        let write = writes.then(|| {
            let last = self.written.entry((group, block)).or_default();
            *last += 1;
            *last
        });
        let least = acked(group, block);
        self.op = Some(HostOp { group, block, write, least, at: None, token: 0 });
    }
}

impl World {
    /// Lets a host start an operation, or send one again.
    pub(super) fn host(&mut self, number: usize) {
        let delay = self.course.delay(30 * MS);
        self.course.after(delay, Happening::Host(number));
        let groups = self.disks.len() as u32;
        let host = &mut self.hosts[number];
        if host.op.is_none() {
            let disks = &self.disks;
            let acked = |group: u32, block: usize| disks[&group].acked[block];
            host.choose(number, groups, &mut self.course.random, acked);
        }
        let op = host.op.clone().expect("chosen above");
        let opens = self.processes.iter().enumerate().filter_map(|(at, process)| {
            let open = process.cores.open.get(&op.group)?;
            let is_seen = process.condition != Condition::Dead && process.links.hosts;
            let serves = is_seen && open.has_begun && !open.is_stopping;
            serves.then_some((at, process.life, open.epoch))
        });
        let opens: Vec<_> = opens.collect();
        let choice = match op.at {
            Some((at, life, epoch)) if self.is_pending((at, life), op.token) => {
                opens.iter().find(|open| open.2 > epoch).copied()
            }
            _ if opens.is_empty() => None,
            _ => Some(opens[self.course.random.index(opens.len())]),
        };
        if let Some((at, life, epoch)) = choice {
            let token = self.token();
            let (group, block, write) = (op.group, op.block, op.write);
            self.hosts[number].op = Some(HostOp { at: Some((at, life, epoch)), token, ..op });
            let op = DiskOp {
                token,
                group,
                host: number,
                block,
                write,
                epoch: 0,
                identity: String::new(),
                client_epoch: 0,
            };
            self.course.after(MS / 10, Happening::Deliver((at, life), op));
        }
    }

    /// Whether an attempt may still be executed.
    fn is_pending(&self, (at, life): Pid, token: u64) -> bool {
        let process = &self.processes[at];
        let cores = &process.cores;
        process.life == life
            && match process.condition {
                Condition::Dead => false,
                Condition::Stopped => true,
                Condition::Running => {
                    cores.flying.contains_key(&token)
                        || cores.parked.iter().any(|op| op.token == token)
                        || self.is_delivering(token)
                }
            }
    }

    pub(super) fn finished(&mut self, number: usize, token: u64, value: u64) {
        let host = &mut self.hosts[number];
        let Some(op) = host.op.take_if(|op| op.token == token) else { return };
        host.done += 1;
        self.counts.done += 1;
        let (group, block) = (op.group, op.block);
        if op.write.is_some() {
            let disk = self.disks.get_mut(&group).expect("every group has a disk");
            disk.acked[block] = disk.acked[block].max(value);
            return;
        }
        let most = self.hosts[block % HOSTS].written.get(&(group, block)).copied().unwrap_or(0);
        if !(op.least..=most).contains(&value) {
            let wrong = format!("host {number} read {value}, not {}..={most}: {op:?}", op.least);
            self.wrong = Some(wrong);
        }
    }

    /// Notes that an attempt has ended without effect.
    pub(super) fn failed(&mut self, number: usize, token: u64) {
        if let Some(op) = self.hosts[number].op.as_mut().filter(|op| op.token == token) {
            op.at = None;
        }
    }

    /// Lets a host ask a random member to exclude a random host from writing, or to admit it again.
    pub(super) fn propose(&mut self) {
        let delay = self.course.delay(700 * MS);
        self.course.after(delay, Happening::Propose);
        let processes = &self.processes;
        let is_alive = |(at, life): Pid| {
            processes[at].life == life && processes[at].condition != Condition::Dead
        };
        self.asked.retain(|_, asked| is_alive(asked.pid));
        let group = 1 + self.course.random.below(self.disks.len() as u64) as u32;
        if self.asked.values().filter(|asked| asked.group == group).count() >= ASKERS {
            return;
        }
        let any = self.course.random.one_in(3);
        let fits = |process: &Process| {
            let leads = process.cores.open.get(&group).is_some_and(|open| open.has_begun);
            process.condition == Condition::Running && process.member.is_joined() && (leads || any)
        };
        let fitting: Vec<_> =
            (0..self.processes.len()).filter(|number| fits(&self.processes[*number])).collect();
        if fitting.is_empty() {
            return;
        }
        let number = fitting[self.course.random.index(fitting.len())];
        let host = self.course.random.index(HOSTS);
        self.consult(number, group, host);
    }

    /// Lets a host ask a member to exclude `host`, or to admit it again.
    pub(super) fn consult(&mut self, number: usize, group: u32, host: usize) {
        let (proposal, pid) = (self.token(), self.pid(number));
        let step = Step::Consults { least: self.disks[&group].reserved.0, host };
        self.asked.insert(proposal, Asked { group, pid, step });
        let namespace = format!("ns-{group}");
        let question = MemberEvent::Consult { proposal, namespace, group };
        self.course.after(MS / 10, Happening::Event(pid, question));
    }

    /// Handles a member's answer to a question or a proposal.
    pub(super) fn answer(&mut self, number: usize, proposal: u64, outcome: &Outcome) {
        let Some(asked) = self.asked.remove(&proposal) else { return };
        let disk = self.disks.get_mut(&asked.group).expect("every group has a disk");
        match (asked.step, outcome) {
            (Step::Proposes(excluded), Outcome::InForce { index }) => {
                self.counts.answers += 1;
                disk.reserve(*index, &excluded);
            }
            (Step::Consults { least, host }, Outcome::Current { index }) => {
                if *index < least {
                    let wrong = format!("member {number} answers change {index} after {least}");
                    self.wrong = Some(wrong);
                }
                self.change(number, asked.group, (*index, host));
            }
            (Step::Proposes(_), Outcome::Conflict) => self.counts.conflicts += 1,
            _ => {}
        }
    }

    /// Lets a member execute a host's reservation command on the state after change `base`.
    fn change(&mut self, number: usize, group: u32, (base, host): (u64, usize)) {
        let namespace = format!("ns-{group}");
        let seen = self.processes[number].member.view().reservations.get(&namespace);
        if seen.map_or(0, |seen| seen.record.index) != base {
            // The member knows a newer state, and asks again.
            return self.consult(number, group, host);
        }
        let state = seen.map_or("", |seen| seen.record.state.as_str());
        let mut excluded: BTreeSet<usize> =
            state.split(',').filter_map(|host| host.parse().ok()).collect();
        let disk = self.disks.get_mut(&group).expect("every group has a disk");
        disk.reserve(base, &excluded);
        if !excluded.remove(&host) {
            excluded.insert(host);
        } else {
            disk.admit(base, host);
        }
        let state: Vec<_> = excluded.iter().map(ToString::to_string).collect();
        let (proposal, pid) = (self.token(), self.pid(number));
        self.asked.insert(proposal, Asked { group, pid, step: Step::Proposes(excluded) });
        let state = state.join(",");
        let (notices, aborted) = (Vec::new(), Vec::new());
        let proposed = Proposed { proposal, namespace, group, base, state, notices, aborted };
        self.course.after(MS / 10, Happening::Event(pid, MemberEvent::Propose(proposed)));
    }
}
