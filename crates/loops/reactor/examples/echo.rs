//! Compares farblock's event loops (engines) with blocking sockets: a ping-pong, pipelined small
//! messages, and large payloads, over loopback between two threads.
//!
//! Run it with `cargo run --release -p farblock-reactor --example echo -- [seconds per measurement]
//! [rounds]`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farblock_reactor::{Buffer, Config, EngineKind, Event, Polling, Reactor, SendBatch, StreamId};

/// Size of a small message in bytes, like a command capsule.
const MESSAGE_BYTES: usize = 72;
/// Size of a large payload in bytes.
const PAYLOAD_BYTES: usize = 128 << 10;

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    a.set_nodelay(true).expect("nodelay");
    b.set_nodelay(true).expect("nodelay");
    (a, b)
}

/// Returns the CPU time of the process so far.
fn cpu_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|f| f.parse().ok()).unwrap_or(0);
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}

/// One end of a connection, with its own reactor.
struct Side {
    reactor: Reactor,
    stream: StreamId,
    task: farblock_reactor::TaskId,
    events: Vec<Event>,
    ready: Vec<farblock_reactor::TaskId>,
    batch: Option<SendBatch>,
}

impl Side {
    fn new(config: &Config, socket: TcpStream) -> Side {
        let reactor = Reactor::new(config).expect("reactor");
        let task = reactor.add_task();
        let stream = reactor.add_stream(task, socket).expect("stream");
        let (events, ready) = (Vec::new(), Vec::new());
        Side { reactor, stream, task, events, ready, batch: Some(SendBatch::new()) }
    }

    /// Polls, and passes all events except `Sent` to `handle`. After `Sent`, reuses the batch.
    fn turn(&mut self, mut handle: impl FnMut(&Reactor, StreamId, Event)) {
        self.reactor.poll(Some(Duration::from_millis(100)), &mut self.ready).expect("poll");
        self.reactor.take_events(self.task, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Sent { mut batch, .. } => {
                    let pool = self.reactor.buffers();
                    batch.take_payloads().for_each(|(_, buffer)| pool.give(buffer));
                    self.batch = Some(batch);
                }
                event => handle(&self.reactor, self.stream, event),
            }
        }
    }

    /// Sends `bytes` bytes of small messages if no send is outstanding.
    fn send_bytes(&mut self, bytes: &mut usize) {
        if *bytes == 0 {
            return;
        }
        if let Some(mut batch) = self.batch.take() {
            let message = [0x42; MESSAGE_BYTES];
            while *bytes > 0 {
                let part = (*bytes).min(MESSAGE_BYTES);
                batch.bytes(&message[..part]);
                *bytes -= part;
            }
            self.reactor.send(self.stream, batch);
        }
    }
}

/// Measures messages per second with `depth` messages in flight.
fn messages(config: &Config, depth: usize, time: Duration) -> f64 {
    let (a, b) = socket_pair();
    let stop = Arc::new(AtomicBool::new(false));
    let (server_config, server_stop) = (config.clone(), Arc::clone(&stop));
    let server = std::thread::spawn(move || {
        let mut side = Side::new(&server_config, b);
        let mut to_send = 0;
        side.reactor.recv(side.stream);
        while !server_stop.load(Ordering::Relaxed) {
            side.turn(|reactor, stream, event| {
                if let Event::Received { result: Ok(buffer), .. } = event
                    && !buffer.is_empty()
                {
                    to_send += buffer.len();
                    reactor.buffers().give(buffer);
                    reactor.recv(stream);
                }
            });
            side.send_bytes(&mut to_send);
        }
    });
    let mut side = Side::new(config, a);
    let (mut received, mut to_send) = (0, depth * MESSAGE_BYTES);
    side.reactor.recv(side.stream);
    side.send_bytes(&mut to_send);
    let start = Instant::now();
    while start.elapsed() < time {
        side.turn(|reactor, stream, event| {
            if let Event::Received { result: Ok(buffer), .. } = event {
                received += buffer.len();
                to_send += buffer.len();
                reactor.buffers().give(buffer);
                reactor.recv(stream);
            }
        });
        side.send_bytes(&mut to_send);
    }
    let rate = (received / MESSAGE_BYTES) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    server.join().expect("server");
    rate
}

/// Measures payload bytes per second in one direction. The receiver receives them directly into
/// their destination.
fn payloads(config: &Config, time: Duration) -> f64 {
    let (a, b) = socket_pair();
    let stop = Arc::new(AtomicBool::new(false));
    let (server_config, server_stop) = (config.clone(), Arc::clone(&stop));
    let server = std::thread::spawn(move || {
        let mut side = Side::new(&server_config, b);
        while !server_stop.load(Ordering::Relaxed) {
            if let Some(mut batch) = side.batch.take() {
                for tag in 0..8 {
                    let buffer = side.reactor.buffers().take(PAYLOAD_BYTES);
                    batch.payload(tag, buffer, 0..PAYLOAD_BYTES);
                }
                side.reactor.send(side.stream, batch);
            }
            side.turn(|_, _, _| {});
        }
    });
    let mut side = Side::new(config, a);
    let receive = |reactor: &Reactor, stream, buffer: Buffer| {
        reactor.recv_into(stream, buffer, 0..PAYLOAD_BYTES);
    };
    receive(&side.reactor, side.stream, Buffer::new(PAYLOAD_BYTES));
    let mut received = 0;
    let start = Instant::now();
    while start.elapsed() < time {
        side.turn(|reactor, stream, event| {
            if let Event::ReceivedInto { buffer, result: Ok(count), .. } = event {
                received += count;
                receive(reactor, stream, buffer);
            }
        });
    }
    let rate = received as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    // Read until the server has noticed that the time is over. Otherwise its last send could never
    // complete.
    while !server.is_finished() {
        side.turn(|reactor, stream, event| {
            if let Event::ReceivedInto { buffer, .. } = event {
                receive(reactor, stream, buffer);
            }
        });
    }
    server.join().expect("server");
    rate
}

/// Returns the CPU time of this thread so far, if the system reports it.
fn thread_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Measures the CPU time per message in nanoseconds when one loop serves both ends of `pairs`
/// connections. This is the cost of the engine and the system without wake-ups. The result does not
/// depend on other load of the machine.
fn cpu_per_message(config: &Config, pairs: usize, rounds: usize) -> f64 {
    let reactor = Reactor::new(config).expect("reactor");
    let task = reactor.add_task();
    let mut batches: Vec<SendBatch> = Vec::new();
    let send = |batches: &mut Vec<SendBatch>, stream| {
        let mut batch = batches.pop().unwrap_or_default();
        batch.bytes(&[0x42; MESSAGE_BYTES]);
        reactor.send(stream, batch);
    };
    for _ in 0..pairs {
        let (a, b) = socket_pair();
        let (a, b) = (reactor.add_stream(task, a), reactor.add_stream(task, b));
        let (a, b) = (a.expect("stream"), b.expect("stream"));
        reactor.recv(a);
        reactor.recv(b);
        send(&mut batches, a);
    }
    let (mut events, mut ready, mut messages) = (Vec::new(), Vec::new(), 0);
    let start = thread_time();
    while messages < rounds * pairs {
        reactor.poll(None, &mut ready).expect("poll");
        reactor.take_events(task, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Sent { mut batch, .. } => {
                    batch.clear();
                    batches.push(batch);
                }
                Event::Received { stream, result: Ok(buffer) } => {
                    reactor.buffers().give(buffer);
                    messages += 1;
                    reactor.recv(stream);
                    send(&mut batches, stream);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let time = thread_time().zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
    time.as_nanos() as f64 / messages as f64
}

/// The lower bound of [`cpu_per_message`]: one system call to send and one to receive.
fn blocking_cpu_per_message(messages: usize) -> f64 {
    let (mut a, mut b) = socket_pair();
    let mut bytes = [0x42; 64 << 10];
    let start = thread_time();
    for _ in 0..messages {
        a.write_all(&bytes[..MESSAGE_BYTES]).expect("write");
        let count = b.read(&mut bytes).expect("read");
        assert_eq!(count, MESSAGE_BYTES);
        std::mem::swap(&mut a, &mut b);
    }
    let time = thread_time().zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
    time.as_nanos() as f64 / messages as f64
}

/// Measures the same as [`messages`] with blocking sockets and two threads, for comparison.
fn blocking_messages(depth: usize, time: Duration) -> f64 {
    let (mut a, mut b) = socket_pair();
    let server = std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = b.read(&mut bytes) {
            if b.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 64 << 10];
    a.write_all(&vec![0; depth * MESSAGE_BYTES]).expect("write");
    let (start, mut received) = (Instant::now(), 0);
    while start.elapsed() < time {
        let count = a.read(&mut bytes).expect("read");
        received += count;
        a.write_all(&bytes[..count]).expect("write");
    }
    let rate = (received / MESSAGE_BYTES) as f64 / start.elapsed().as_secs_f64();
    drop(a);
    server.join().expect("server");
    rate
}

fn blocking_payloads(time: Duration) -> f64 {
    let (mut a, mut b) = socket_pair();
    let server = std::thread::spawn(move || {
        let bytes = vec![0; 8 * PAYLOAD_BYTES];
        while b.write_all(&bytes).is_ok() {}
    });
    let mut bytes = vec![0; PAYLOAD_BYTES];
    let (start, mut received) = (Instant::now(), 0);
    while start.elapsed() < time {
        a.read_exact(&mut bytes).expect("read");
        received += bytes.len();
    }
    let rate = received as f64 / start.elapsed().as_secs_f64();
    drop(a);
    server.join().expect("server");
    rate
}

/// A measurement with its name, unit and function.
struct Case {
    name: String,
    unit: &'static str,
    measure: Box<dyn Fn(Duration) -> f64>,
    /// The best rate of all rounds, and the processors that this round used.
    best: (f64, f64),
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |name: String, unit, measure: Box<dyn Fn(Duration) -> f64>| {
        cases.push(Case { name, unit, measure, best: (0.0, 0.0) });
    };
    let mut configs = Vec::new();
    for engine in [EngineKind::Uring, EngineKind::Portable] {
        for polling in [Polling::Never, Polling::default(), Polling::Always] {
            configs.push(Config { engine, polling, ..Config::default() });
        }
    }
    let describe = |config: &Config| format!("{}, polling {:?}", config.engine, config.polling);
    for depth in [1, 32, 256] {
        let blocking = Box::new(move |time| blocking_messages(depth, time));
        add(format!("depth {depth}: blocking sockets"), "messages/s", blocking);
        for config in configs.clone() {
            let name = format!("depth {depth}: {}", describe(&config));
            add(name, "messages/s", Box::new(move |time| messages(&config, depth, time)));
        }
    }
    let mib = f64::from(1 << 20);
    let blocking = Box::new(move |time| blocking_payloads(time) / mib);
    add("payloads: blocking sockets".to_owned(), "MiB/s", blocking);
    for config in configs {
        let name = format!("payloads: {}", describe(&config));
        add(name, "MiB/s", Box::new(move |time| payloads(&config, time) / mib));
    }
    cases
}

fn main() {
    let argument = |index| std::env::args().nth(index).and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(argument(1).unwrap_or(0.3));
    let mut cases = cases();
    // Interleave the rounds and use the best round of each case: other load may slow some rounds.
    for _ in 0..argument(2).unwrap_or(5.0) as usize {
        for case in &mut cases {
            let (cpu, start) = (cpu_time(), Instant::now());
            let rate = (case.measure)(time);
            let cpus = (cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
            if rate > case.best.0 {
                case.best = (rate, cpus);
            }
        }
    }
    let floor = blocking_cpu_per_message(200_000);
    println!("one thread, blocking sockets   {floor:>8.0} ns of CPU per message");
    for engine in [EngineKind::Uring, EngineKind::Portable] {
        for pairs in [1, 8, 64] {
            let config = Config { engine, ..Config::default() };
            let rounds = 200_000 / pairs;
            let best = (0..3).map(|_| cpu_per_message(&config, pairs, rounds));
            let best = best.fold(f64::INFINITY, f64::min);
            println!("one loop, {pairs:>2} pairs: {engine:<9} {best:>8.0} ns of CPU per message");
        }
    }
    for Case { name, unit, best: (rate, cpus), .. } in cases {
        println!("{name:<32} {rate:>10.0} {unit:<10} {cpus:.2} CPUs");
    }
}
