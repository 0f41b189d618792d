//! Measures the cost of a vhost-user-blk device without a guest. Sends the requests that a guest's
//! driver would send. Prints results in the form of fio's JSON.
//!
//!     vhost_drive SOCKET fill BYTES
//!     vhost_drive SOCKET randread DEPTH BYTES RAMP_MS RUNTIME_MS
//!
//! Each request has 4 KiB. BYTES is the size of the disk; the program writes or reads the whole
//! disk.

#[path = "../tests/vhost_support/mod.rs"]
mod support;

use farblock_random::Random;
use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{DATA, F_EVENT_IDX, IN, OK, OUT, SIZE, Vm};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

const REQUEST_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// The number of descriptors of a request: header, data, status.
const PARTS: u16 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [socket, "fill", bytes] => Driver::new(socket, 32)?.fill(bytes.parse()?),
        [socket, "randread", depth, bytes, ramp, runtime] => {
            let ms = |text: &str| text.parse().map(Duration::from_millis);
            let driver = Driver::new(socket, depth.parse()?)?;
            driver.read(bytes.parse()?, ms(ramp)?, ms(runtime)?)
        }
        _ => Err("usage: vhost_drive SOCKET fill BYTES | randread DEPTH BYTES RAMP_MS MS".into()),
    }
}

/// A driver with a fixed number of requests, each with its own descriptors in the ring (its place).
struct Driver {
    vm: Vm,
    calls: Epoll,
    depth: u16,
    /// The start time of each request, by place.
    began: Vec<Instant>,
    /// The free places.
    free: Vec<u16>,
    status_at: Vec<u64>,
}

impl Driver {
    fn new(socket: &str, depth: u16) -> Result<Driver, Box<dyn Error>> {
        if depth == 0 || depth > SIZE / PARTS {
            return Err(
                format!("a depth of {depth} is out of range: use 1 to {}", SIZE / PARTS).into()
            );
        }
        let mut vm = Vm::new();
        vm.attach_to(Path::new(socket), !F_EVENT_IDX);
        let calls = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN, 0);
        calls.ctl(ControlOperation::Add, vm.rings[0].call.as_raw_fd(), event)?;
        let places = usize::from(depth);
        Ok(Driver {
            vm,
            calls,
            depth,
            began: vec![Instant::now(); places],
            free: (0..depth).collect(),
            status_at: vec![0; places],
        })
    }

    /// Submits a request from every free place. `offset` returns the offset of the next request, or
    /// `None` at the end.
    fn submit(&mut self, kind: u32, mut offset: impl FnMut() -> Option<u64>) {
        let mut placed = false;
        while let Some(&place) = self.free.last() {
            let Some(offset) = offset() else { break };
            self.free.pop();
            self.vm.rings[0].reuse(place * PARTS);
            let data = (DATA + u64::from(place) * REQUEST_BYTES, REQUEST_BYTES as u32);
            self.began[usize::from(place)] = Instant::now();
            let (_, status_at) = self.vm.place(0, kind, offset / SECTOR_BYTES, &[data]);
            self.status_at[usize::from(place)] = status_at;
            placed = true;
        }
        if placed {
            self.vm.kick(0);
        }
    }

    /// Waits for an interrupt. Calls `over` with the duration of each completed request.
    fn wait(&mut self, mut over: impl FnMut(Duration)) -> Result<(), Box<dyn Error>> {
        self.calls.wait(-1, &mut [EpollEvent::default()])?;
        self.vm.rings[0].call.read()?;
        while let Some((head, _)) = self.vm.used_within(0, Duration::ZERO) {
            let place = head as u16 / PARTS;
            let status = self.vm.read(self.status_at[usize::from(place)], 1)[0];
            if status != OK {
                return Err(format!("a request ended with status {status}").into());
            }
            over(self.began[usize::from(place)].elapsed());
            self.free.push(place);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        usize::from(self.depth) - self.free.len()
    }

    fn fill(mut self, bytes: u64) -> Result<(), Box<dyn Error>> {
        self.vm.write(DATA, &[0x5a; 64 * REQUEST_BYTES as usize]);
        let mut offsets = (0..bytes / REQUEST_BYTES).map(|index| index * REQUEST_BYTES);
        self.submit(OUT, || offsets.next());
        while self.in_flight() > 0 {
            self.wait(drop)?;
            self.submit(OUT, || offsets.next());
        }
        Ok(())
    }

    fn read(mut self, bytes: u64, ramp: Duration, runtime: Duration) -> Result<(), Box<dyn Error>> {
        let mut random = Random::new(1);
        let mut offset = || Some(random.below(bytes / REQUEST_BYTES) * REQUEST_BYTES);
        let begin = Instant::now();
        let mut latencies = Vec::new();
        while begin.elapsed() < ramp + runtime {
            self.submit(IN, &mut offset);
            let measured = begin.elapsed() >= ramp;
            self.wait(|latency| latencies.extend(measured.then_some(latency)))?;
        }
        latencies.sort_unstable();
        let ns = |of_1000: usize| latencies.get(latencies.len() * of_1000 / 1000);
        let ns = |of_1000| ns(of_1000).map_or(0, Duration::as_nanos);
        println!(
            r#"{{"jobs": [{{"error": 0, "read": {{"iops": {}, "clat_ns": {{"percentile":
                {{"50.000000": {}, "99.000000": {}, "99.900000": {}}}}}}},
                "write": {{"iops": 0.0}}}}]}}"#,
            latencies.len() as f64 / runtime.as_secs_f64(),
            ns(500),
            ns(990),
            ns(999),
        );
        Ok(())
    }
}
