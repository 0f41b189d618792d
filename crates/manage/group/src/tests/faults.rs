//! Faults: at most two at a time, each for a while.

use super::process::{Condition, Links};
use super::world::{GROUP, Happening, MS, Pid, World};
use crate::store::{StoreReply, StoreRequest, StoreTrouble};
use crate::{
    Duty, KeySpace, MemberEvent, OrderRecord, PinRecord, Record, Unknown, VERSION, release,
    release_reads,
};

/// A fault that lasts, with the member or the ANA group that it concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Stopped(usize),
    /// All links of a machine are broken.
    Silent(usize),
    NoRequests(usize),
    NoReplies(usize),
    Minority(usize),
    NoDisks(usize),
    /// The machine cannot open disks.
    NoOpen(usize),
    NoHosts(usize),
    NoRenewals(usize),
    NoRefutations(usize),
    NoQuorum,
    Stall(u32),
    Ordered(usize),
    Pinned(u32),
}

impl Fault {
    /// The member whose machine the fault hits.
    fn member(self) -> Option<usize> {
        match self {
            Self::Stopped(number)
            | Self::Silent(number)
            | Self::NoRequests(number)
            | Self::NoReplies(number)
            | Self::Minority(number)
            | Self::NoDisks(number)
            | Self::NoOpen(number)
            | Self::NoHosts(number)
            | Self::NoRenewals(number)
            | Self::NoRefutations(number) => Some(number),
            _ => None,
        }
    }
}

impl World {
    pub(super) fn fault(&mut self) {
        let delay = self.course.delay(1_200 * MS);
        self.course.after(delay, Happening::Fault);
        if self.faults.len() >= 2 || self.is_calm {
            return;
        }
        self.counts.faults += 1;
        let number = self.course.random.index(self.processes.len());
        let group = 1 + self.course.random.below(self.disks.len() as u64) as u32;
        // Half of the faults hit a leader.
        let leader = self.processes.iter().position(|it| it.cores.open.contains_key(&group));
        let number = leader.filter(|_| self.course.random.one_in(2)).unwrap_or(number);
        // A second fault often hits the machine of the first.
        let first = self.faults.first().and_then(|fault| fault.member());
        let number = first.filter(|_| self.course.random.one_in(2)).unwrap_or(number);
        let fault = match self.course.random.below(21) {
            0..3 => {
                if self.processes[number].condition != Condition::Dead {
                    self.kill(number);
                }
                return;
            }
            3..5 => Fault::Stopped(number),
            5 => Fault::Silent(number),
            6 => Fault::NoRequests(number),
            7 => Fault::NoReplies(number),
            8 => Fault::Minority(number),
            9 => Fault::NoDisks(number),
            10 => Fault::NoHosts(number),
            11 => Fault::NoQuorum,
            12 => Fault::Stall(group),
            13 => Fault::Ordered(number),
            14 => Fault::Pinned(group),
            15 => {
                self.etcd.revoke_early(&format!("farblock/{GROUP}/alive/m{number}"));
                return;
            }
            16 => {
                let keep = self.course.random.below(20);
                self.etcd.compact(keep);
                return;
            }
            17 => Fault::NoRenewals(number),
            18 => Fault::NoRefutations(number),
            19 => Fault::NoOpen(number),
            _ => {
                self.leave(number);
                return;
            }
        };
        if !self.faults.contains(&fault) {
            self.begin(fault);
            self.faults.push(fault);
            let long = self.course.random.one_in(3);
            let short = self.course.delay(1_500 * MS);
            let time = if long { 4_000 * MS + 4 * short } else { short };
            self.course.after(time, Happening::Heal(fault));
        }
    }

    fn leave(&mut self, number: usize) {
        if self.processes[number].condition == Condition::Running {
            self.with(number, |member, now| member.handle(now, MemberEvent::Leave));
            let pid = self.pid(number);
            // The process exits a while later, and starts again.
            self.course.after(3_000 * MS, Happening::End(pid));
        }
    }

    pub(super) fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped(number) => self.stop(number),
            Fault::Silent(number) => {
                let links = &mut self.processes[number].links;
                *links = Links {
                    to_store: false,
                    from_store: false,
                    disks: false,
                    hosts: false,
                    ..Links::default()
                };
            }
            Fault::NoRequests(number) => self.processes[number].links.to_store = false,
            Fault::NoReplies(number) => self.processes[number].links.from_store = false,
            Fault::Minority(number) => self.processes[number].links.is_minority = true,
            Fault::NoDisks(number) => self.processes[number].links.disks = false,
            Fault::NoOpen(number) => self.processes[number].links.opens = false,
            Fault::NoHosts(number) => self.processes[number].links.hosts = false,
            Fault::NoRenewals(number) => self.processes[number].links.renewals = false,
            Fault::NoRefutations(number) => {
                let links = &mut self.processes[number].links;
                (links.renewals, links.refutations) = (false, false);
            }
            Fault::NoQuorum => self.etcd.has_no_quorum = true,
            Fault::Stall(group) => {
                let time = self.course.delay(5_000 * MS);
                let disk = self.disks.get_mut(&group).expect("every group has a disk");
                disk.stalled_until = self.course.now + time;
            }
            Fault::Ordered(number) => {
                let duty = if self.course.random.one_in(2) { Duty::Drain } else { Duty::Pause };
                let record = OrderRecord {
                    version: VERSION,
                    duty,
                    weight: None,
                    restart: None,
                    unknown: Unknown::new(),
                };
                self.etcd.put(&format!("farblock/{GROUP}/order/m{number}"), record.to_value());
            }
            Fault::Pinned(group) => {
                let member = format!("m{}", self.course.random.index(self.processes.len()));
                let record = PinRecord { version: VERSION, member };
                self.etcd.put(&format!("farblock/{GROUP}/pin/{group}"), record.to_value());
            }
        }
    }

    /// Stops a process (SIGSTOP). A watchdog kills it shortly after its permit for a disk without a
    /// complete hard fence ends.
    fn stop(&mut self, number: usize) {
        let pid = self.pid(number);
        let process = &mut self.processes[number];
        if process.condition != Condition::Running {
            return;
        }
        process.condition = Condition::Stopped;
        let disks = &self.disks;
        if let Some(until) = process.last_permit(|group| disks[&group].kind) {
            let at = process.world(until, self.course.now) + 50 * MS;
            self.course.after(at - self.course.now, Happening::Watchdog(pid));
        }
    }

    pub(super) fn heal(&mut self, fault: Fault) {
        self.faults.retain(|other| *other != fault);
        match fault {
            Fault::Stopped(number) => self.resume(number),
            Fault::Silent(number)
            | Fault::NoRequests(number)
            | Fault::NoReplies(number)
            | Fault::Minority(number)
            | Fault::NoDisks(number)
            | Fault::NoOpen(number)
            | Fault::NoHosts(number)
            | Fault::NoRenewals(number)
            | Fault::NoRefutations(number) => self.processes[number].links = Links::default(),
            Fault::NoQuorum => {
                let renews = self.course.random.one_in(2);
                self.etcd.return_quorum(self.course.now, renews);
            }
            Fault::Stall(group) => {
                let disk = self.disks.get_mut(&group).expect("every group has a disk");
                disk.stalled_until = 0;
            }
            Fault::Ordered(number) => {
                self.etcd.delete(&format!("farblock/{GROUP}/order/m{number}"));
            }
            Fault::Pinned(group) => self.etcd.delete(&format!("farblock/{GROUP}/pin/{group}")),
        }
    }
}

impl World {
    /// The watchdog of an ended process releases its leaderships.
    pub(super) fn release(&mut self, pid: Pid, process: u64) {
        let again = self.course.delay(100 * MS);
        let links = self.processes[pid.0].links;
        let reaches = links.to_store && links.from_store && !links.is_minority;
        let keys = KeySpace::new(GROUP);
        let name = format!("m{}", pid.0);
        let flying = self.flying(pid);
        let gives_up = self.course.random.one_in(20);
        let waits = !flying.is_empty() && !crate::has_mistake("the watchdog does not wait");
        let request = StoreRequest::Txn(release_reads(&keys, &name));
        let reply = match reaches && (!waits || gives_up) {
            true => self.etcd.execute(self.course.now, &request),
            false => StoreReply::Failed(StoreTrouble::Silent),
        };
        let StoreReply::Done(done) = reply else {
            if !self.course.random.one_in(50) {
                self.course.after(again, Happening::Release(pid, process));
            }
            return;
        };
        let is_quiet = |group| !waits || !flying.contains(&group);
        if let Some(txn) = release(&keys, (&name, process), &done.entries, is_quiet) {
            let is_late = self.course.random.one_in(4);
            let delay = self.course.delay(if is_late { 3_000 * MS } else { 5 * MS });
            self.course.after(delay, Happening::Released(txn));
        }
    }
}
