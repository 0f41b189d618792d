//! Agents that die or hang, at every stage of a run. The run ends, and the error names the agent.

mod support;

use farblock_fleet::{FleetTimeouts, Plan};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use support::{TOKEN, carry_out_with, listener, plan};

/// The way in which the controller loses an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// The agent dies in the middle of a line.
    Dies,
    /// The agent hangs, and its connection stays open.
    Hangs,
}

/// Relays lines between the controller and an agent. A line that contains `last` triggers the loss.
fn relay(agent: SocketAddr, last: &'static str, loss: Loss) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket has an address");
    thread::spawn(move || {
        let (here, _) = listener.accept().expect("the controller connects");
        let there = TcpStream::connect(agent).expect("the agent listens");
        let (is_lost, (ended, end)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        for (from, to) in [(&here, &there), (&there, &here)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (is_lost, ended) = (Arc::clone(&is_lost), ended.clone());
            thread::spawn(move || {
                carry(&from, &to, last, loss, &is_lost);
                let _ = ended.send(());
            });
        }
        drop(ended);
        let _ = end.recv();
        if loss == Loss::Hangs && is_lost.load(Ordering::Acquire) {
            return thread::park(); // keep both connections open
        }
        let _ = here.shutdown(Shutdown::Both);
        let _ = there.shutdown(Shutdown::Both);
    });
    address
}

fn carry(from: &TcpStream, mut to: &TcpStream, last: &str, loss: Loss, is_lost: &AtomicBool) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if is_lost.load(Ordering::Acquire) {
            return;
        }
        if line.contains(last) {
            is_lost.store(true, Ordering::Release);
            if loss == Loss::Dies {
                let _ = to.write_all(&line.as_bytes()[..line.len() / 2]);
            }
            return;
        }
        if to.write_all(format!("{line}\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn patience(loss: Loss) -> FleetTimeouts {
    match loss {
        // The closed connection reveals the loss, so no timeout must elapse.
        Loss::Dies => FleetTimeouts::default(),
        Loss::Hangs => {
            let time = Duration::from_secs(4);
            let end = Duration::from_secs(1);
            FleetTimeouts {
                answer: time,
                word: time,
                silence: time,
                open: time,
                end,
                ..FleetTimeouts::default()
            }
        }
    }
}

/// The stages at which the controller loses an agent: the name of the stage, the message that
/// triggers the loss, and the plan.
fn stages(is_target: bool) -> [(&'static str, &'static str, Plan); 4] {
    let with = |ramp: f64, runtime: f64| {
        let mut plan = plan(listener());
        (plan.ramp_seconds, plan.runtime_seconds, plan.alone_seconds) = (ramp, runtime, 0.0);
        plan
    };
    // Seconds of warm-up or load: longer than the test, so that only a detected loss ends a stage.
    let ever = 3600.0;
    match is_target {
        true => [
            ("before the start", "\"ask\":\"share\"", with(0.1, ever)),
            ("warm-up", "\"ask\":\"meter\"", with(ever, 1.0)),
            ("measuring", "\"say\":\"progress\"", with(0.1, ever)),
            ("results", "\"say\":\"used\"", with(0.1, 0.3)),
        ],
        false => [
            ("before the start", "\"ask\":\"connect\"", with(0.1, ever)),
            ("warm-up", "\"say\":\"progress\",\"iops\":0", with(ever, 1.0)),
            // This matches progress messages of any speed.
            ("measuring", "\"say\":\"progress\",\"iops\":", with(0.0, ever)),
            ("results", "\"say\":\"measured\"", with(0.1, 0.3)),
        ],
    }
}

fn lose(agent: usize, name: &str, loss: Loss, word: &str) {
    for (stage, last, mut plan) in stages(agent == 0) {
        let address = plan.agents[agent].address.parse().expect("the agent has an address");
        plan.agents[agent].address = relay(address, last, loss).to_string();
        let why = carry_out_with(&plan, TOKEN, patience(loss)).expect_err(stage).to_string();
        assert!(why.starts_with(&format!("{name}: ")), "{stage}: {why}");
        assert!(why.contains(word), "{stage}: {why}");
    }
}

#[test]
fn the_error_names_a_host_that_dies() {
    lose(2, "right", Loss::Dies, "the agent closed the connection, or has exited");
}

#[test]
fn the_error_names_a_target_that_dies_and_not_its_hosts() {
    lose(0, "storage", Loss::Dies, "the agent closed the connection, or has exited");
}

#[test]
fn the_error_names_a_host_that_hangs() {
    lose(2, "right", Loss::Hangs, "it has not answered for 4 s: it hangs");
}

#[test]
fn the_error_names_a_target_that_hangs() {
    lose(0, "storage", Loss::Hangs, "it has not answered for 4 s: it hangs");
}
