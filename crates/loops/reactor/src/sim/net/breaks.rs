//! What goes wrong with connections, machines and addresses.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::{RETRANSMIT_TIME, Side};
use crate::sim::{Happening, WorldState};

/// A side that hears nothing of the other's end finds out by itself after so long.
const GHOST_TIME: Duration = Duration::from_secs(120);

/// How a connection breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    /// Both sides find out soon, after what was on its way arrived.
    Reset,
    /// The client finds out at once. What it had sent reaches the server so much later, and only
    /// then does the server find out.
    Stray(Duration),
    /// One side finds out at once; the other hears nothing any more.
    HalfOpen(Side),
    /// Nothing arrives any more, and nobody is told.
    Silence,
    /// What this side sends takes so much longer, and then arrives: nothing is broken.
    Stall(Side, Duration),
}

/// When something that is tried at `from`, and again after `first`, and after twice as long each
/// time, is tried next at `until` or later.
pub(super) fn next_try(from: u64, first: Duration, until: u64) -> u64 {
    let (mut at, mut pause) = (from, first.as_nanos() as u64);
    while at < until {
        at += pause;
        pause *= 2;
    }
    at
}

impl WorldState {
    /// Until when a machine is cut off, if it is.
    fn cut_until(&self, machine: u32) -> Option<u64> {
        self.net.cut.get(&machine).copied().filter(|until| *until > self.now)
    }

    /// Cuts machines off for a while. What is on its way, and what they send meanwhile, arrives
    /// when it is sent anew after that, as TCP does.
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

    /// Until when nothing arrives of what a side sends, if that is so.
    pub(super) fn silent_until(&self, link: usize, side: Side) -> Option<u64> {
        let link = &self.net.links[link];
        let dark = self.net.dark.get(&(link.addresses[1], side)).copied();
        let dark = dark.filter(|until| *until > self.now);
        dark.max(self.cut_until(link.machine))
    }

    /// For a while everything vanishes that one side of an address' connections sends. Nobody is
    /// told; what is sent anew after that arrives, whether or not anybody waits for it any more.
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

    /// The process that connected from a machine is gone, and none that starts there is heard. What
    /// it has sent is still on its way, for as long as `longest`.
    pub(in crate::sim) fn end_process(&mut self, machine: u32, longest: Duration) {
        self.net.gone.insert(machine);
        for link in 0..self.net.links.len() {
            let found = &mut self.net.links[link];
            if found.machine != machine || found.is_over() {
                continue;
            }
            // It says nothing more from now on.
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
            Break::Stall(..) => unreachable!("it is not broken"),
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
