//! Faults of simulated connections, machines and addresses.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::{RETRANSMIT_TIME, Side};
use crate::sim::{Happening, WorldState};

/// A side that gets no answer for this time considers the connection dead.
const GHOST_TIME: Duration = Duration::from_secs(120);

/// The way in which a connection breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    /// Both sides notice the break once the data in flight has arrived.
    Reset,
    /// The client notices the break at once. Data that it sent reaches the server after this time.
    /// Only then does the server notice the break.
    Stray(Duration),
    /// One side notices the break at once. The other side receives no more data, and does not
    /// notice.
    HalfOpen(Side),
    /// No more data arrives, and neither side gets an error.
    Silence,
    /// Data from this side takes this much longer to arrive. The connection stays open.
    Stall(Side, Duration),
}

/// Returns the time in nanoseconds at which a sender first retries at or after `until`. The sender
/// first sends at `from` and retries after `first`. The interval doubles after each retry.
pub(super) fn next_try(from: u64, first: Duration, until: u64) -> u64 {
    let (mut at, mut pause) = (from, first.as_nanos() as u64);
    while at < until {
        at += pause;
        pause *= 2;
    }
    at
}

impl WorldState {
    /// Returns when a machine's disconnection ends. `None` if the machine is connected.
    fn cut_until(&self, machine: u32) -> Option<u64> {
        self.net.cut.get(&machine).copied().filter(|until| *until > self.now)
    }

    /// Disconnects machines for `time`. Data in flight, and data that they send during this time,
    /// arrives when the sender retransmits it afterwards, as with TCP.
    pub(in crate::sim) fn cut(&mut self, machines: Range<u32>, time: Duration) {
        let until = self.after(time);
        for machine in machines.clone() {
            self.net.cut.insert(machine, until);
        }
        let held = next_try(self.now, RETRANSMIT_TIME, until);
        for link in &mut self.net.links {
            if machines.contains(&link.machine) && !link.is_over() {
                link.ways.iter_mut().for_each(|way| way.held_until = held);
            }
        }
    }

    /// Returns when data from a side is no longer lost. `None` if it is not lost now.
    pub(super) fn silent_until(&self, link: usize, side: Side) -> Option<u64> {
        let link = &self.net.links[link];
        let dark = self.net.dark.get(&(link.addresses[1], side)).copied();
        let dark = dark.filter(|until| *until > self.now);
        dark.max(self.cut_until(link.machine))
    }

    /// Drops all data from one side of an address's connections for `time`, without an error. Data
    /// that the sender retransmits afterwards arrives, even if no thread waits for it any more.
    pub(in crate::sim) fn blackhole(&mut self, address: SocketAddr, side: Side, time: Duration) {
        let until = self.after(time);
        self.net.dark.insert((address, side), until);
        let held = next_try(self.now, RETRANSMIT_TIME, until);
        for &link in self.net.links_to.get(&address).into_iter().flatten() {
            let link = &mut self.net.links[link];
            if !link.is_over() {
                let way = &mut link.ways[side as usize];
                way.held_until = way.held_until.max(held);
            }
        }
    }

    /// Kills the process that connected from a machine. New processes on the machine cannot
    /// connect. Data that the killed process has sent stays in flight for up to `longest`.
    pub(in crate::sim) fn end_process(&mut self, machine: u32, longest: Duration) {
        self.net.gone.insert(machine);
        for link in 0..self.net.links.len() {
            let found = &mut self.net.links[link];
            if found.machine != machine || found.is_over() {
                continue;
            }
            // The killed process sends no more data.
            found.ends[0].error.get_or_insert(ErrorKind::ConnectionReset);
            if found.is_connected && !found.is_broken {
                let time = self.random.time(longest);
                self.break_link(link, Break::Stray(time));
            }
            self.wake_end(link, Side::Client);
        }
    }

    pub(in crate::sim) fn break_link(&mut self, link: usize, how: Break) {
        let (client, server) = (Side::Client, Side::Server);
        let fail = |side| Happening::Fail { link, side };
        if let Break::Stall(side, time) = how {
            self.net.links[link].ways[side as usize].held_until = self.after(time);
            return;
        }
        self.net.links[link].is_broken = true;
        match how {
            Break::Reset => {
                for side in [client, server] {
                    let delay = self.net_delay();
                    self.schedule(delay, fail(side));
                }
            }
            Break::Stray(time) => {
                self.schedule(Duration::ZERO, fail(client));
                self.net.links[link].ways[server as usize].is_lost = true;
                let arrives = self.after(time);
                let way = &mut self.net.links[link].ways[client as usize];
                way.held_until = way.held_until.max(arrives);
                self.schedule(time, Happening::Arrive { link, side: client });
                self.schedule(time + Duration::from_millis(1), fail(server));
            }
            Break::HalfOpen(_) | Break::Silence => {
                self.net.links[link].ways.iter_mut().for_each(|way| way.is_lost = true);
                for side in [client, server] {
                    let knows = how == Break::HalfOpen(side);
                    self.schedule(if knows { Duration::ZERO } else { GHOST_TIME }, fail(side));
                }
            }
            Break::Stall(..) => unreachable!("a stall does not break the connection"),
        }
    }

    pub(in crate::sim) fn kill(&mut self, address: SocketAddr) {
        if let Some(&index) = self.net.open.get(&address) {
            self.net.close_listener(index);
        }
        let mut links = self.net.links_to.remove(&address).unwrap_or_default();
        links.retain(|&link| !self.net.links[link].is_over());
        for &link in &links {
            let found = &mut self.net.links[link];
            found.is_broken = true;
            found.ways[1].is_lost = true;
            found.ways[0].is_lost = true;
            found.ends[1].error.get_or_insert(ErrorKind::ConnectionReset);
            self.wake_end(link, Side::Server);
            self.reset(link, Side::Client, 0);
        }
        self.net.links_to.insert(address, links);
    }
}
