//! Processor time and memory on Linux, from `/proc` and the clocks of processes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::cpu_source::CpuSource;

/// The ticks per second in `/proc/PID/stat`, the same on every architecture that Rust supports.
const TICKS_PER_SECOND: u64 = 100;
/// The prefixes of the names of the kernel's threads for an io_uring. The number of the thread that
/// created the ring follows.
const RING_THREADS: [&str; 2] = ["iou-wrk-", "iou-sqp-"];

/// Another process with all of its threads, including finished threads.
#[derive(Debug)]
pub struct OtherProcess {
    clock: ClockId,
    last_ns: AtomicU64,
}

impl OtherProcess {
    /// The process with this ID.
    pub fn new(process: u32) -> io::Result<OtherProcess> {
        let number = i32::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
        let clock = clock_getcpuclockid(Pid::from_raw(number))?;
        clock.now()?;
        Ok(OtherProcess { clock, last_ns: AtomicU64::new(0) })
    }
}

impl CpuSource for OtherProcess {
    /// The processor time. After the process has ended, this is the last reading.
    fn cpu_time(&self) -> Duration {
        if let Ok(now) = self.clock.now() {
            let now = Duration::from(now).as_nanos() as u64;
            self.last_ns.fetch_max(now, Ordering::Relaxed);
        }
        Duration::from_nanos(self.last_ns.load(Ordering::Relaxed))
    }
}

/// The number of voluntary sleeps of this process's threads, including finished threads.
pub(crate) fn sleeps() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    u64::try_from(usage.voluntary_context_switches()).ok()
}

/// Some threads of a process, selected by name prefix and by thread number.
///
/// A finished thread counts with its last reading. The group also finds threads that start later.
#[derive(Debug)]
pub struct ThreadGroup {
    tasks: PathBuf,
    prefixes: Vec<String>,
    threads: HashSet<u32>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    last: HashMap<u32, Duration>,
    /// The processor time of finished threads whose numbers newer threads now have.
    ended: Duration,
}

impl ThreadGroup {
    /// The threads of this process whose names start with one of `prefixes`. Linux stores 15 bytes
    /// of a name.
    pub fn named(prefixes: &[&str]) -> io::Result<ThreadGroup> {
        Self::new(std::process::id(), prefixes, &[])
    }

    /// The threads of a process that are selected by name prefix or by number.
    pub fn new(process: u32, prefixes: &[&str], threads: &[u32]) -> io::Result<ThreadGroup> {
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        fs::read_dir(&tasks)?;
        Ok(ThreadGroup {
            tasks,
            prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
            threads: threads.iter().copied().collect(),
            seen: Mutex::default(),
        })
    }

    fn members(&self) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(&self.tasks) else { return Vec::new() };
        let all: Vec<(u32, String)> = entries
            .flatten()
            .filter_map(|entry| {
                let thread = entry.file_name().to_str()?.parse().ok()?;
                let name = fs::read_to_string(entry.path().join("comm")).ok()?;
                Some((thread, name.trim_end_matches('\n').to_owned()))
            })
            .collect();
        self.select(&all)
    }

    /// The threads of the group, among all threads of the process.
    fn select(&self, all: &[(u32, String)]) -> Vec<u32> {
        let named = |(thread, name): &&(u32, String)| {
            self.threads.contains(thread)
                || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut members: Vec<u32> = all.iter().filter(named).map(|(thread, _)| *thread).collect();
        let owners: HashSet<u32> = members.iter().copied().collect();
        let workers = all.iter().filter(|(thread, name)| {
            !owners.contains(thread) && ring_owner(name).is_some_and(|o| owners.contains(&o))
        });
        members.extend(workers.map(|(thread, _)| *thread));
        members
    }

    fn thread_time(&self, thread: u32) -> Option<Duration> {
        let directory = self.tasks.join(thread.to_string());
        let schedstat = fs::read_to_string(directory.join("schedstat")).ok();
        schedstat
            .as_deref()
            .and_then(parse_schedstat)
            .or_else(|| parse_stat(&fs::read_to_string(directory.join("stat")).ok()?))
    }
}

impl CpuSource for ThreadGroup {
    fn cpu_time(&self) -> Duration {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in self.members() {
            if let Some(now) = self.thread_time(thread) {
                seen.note(thread, now);
            }
        }
        seen.total()
    }
}

impl Seen {
    fn note(&mut self, thread: u32, now: Duration) {
        let last = self.last.insert(thread, now).unwrap_or_default();
        if now < last {
            self.ended += last;
        }
    }

    fn total(&self) -> Duration {
        self.last.values().sum::<Duration>() + self.ended
    }
}

/// The resident memory of a process, in bytes; `None` if the system does not report it.
pub fn resident_memory_bytes(process: u32) -> Option<u64> {
    parse_resident(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

/// The number of the thread that created the ring, from the name of a kernel thread.
fn ring_owner(name: &str) -> Option<u32> {
    RING_THREADS.iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok())
}

/// Parses the time on a processor in nanoseconds, which is the first number. A kernel without this
/// statistic reports 0.
fn parse_schedstat(text: &str) -> Option<Duration> {
    let ns: u64 = text.split_whitespace().next()?.parse().ok()?;
    (ns > 0).then(|| Duration::from_nanos(ns))
}

/// Parses the user and system times, the 14th and 15th fields. The name before them may contain
/// spaces and parentheses.
fn parse_stat(text: &str) -> Option<Duration> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(user.checked_add(system)? * (1000 / TICKS_PER_SECOND)))
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    use cpu_time::ThreadTime;

    fn burn(time: Duration) {
        let start = ThreadTime::now();
        while start.elapsed() < time {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn a_thread_group_counts_only_its_own_threads() {
        const WORK: Duration = Duration::from_millis(20);
        let group = ThreadGroup::named(&["cputest-in"]).expect("/proc is mounted");
        assert_eq!(group.cpu_time(), Duration::ZERO);
        let (done, burnt) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = std::sync::Arc::new(Mutex::new(wait));
        let threads: Vec<_> = ["cputest-in-0", "cputest-in-1", "cputest-out"]
            .map(|name| {
                let (done, wait) = (done.clone(), wait.clone());
                let body = move || {
                    burn(WORK);
                    done.send(()).expect("the test waits");
                    let _ = wait.lock().expect("no holder panics").recv();
                };
                thread::Builder::new().name(name.to_owned()).spawn(body).expect("the thread starts")
            })
            .into();
        (0..3).for_each(|_| burnt.recv().expect("all three threads report"));
        // Allow a little less: while a thread runs, the kernel's sum may lag behind the thread's
        // clock by a tick.
        assert!(group.cpu_time() >= WORK, "{:?}", group.cpu_time());
        assert_eq!(group.members().len(), 2);
        let before_end = group.cpu_time();
        drop(go_on);
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert!(group.cpu_time() >= before_end, "an ended thread's time is lost");
    }

    #[test]
    fn ring_workers_count_for_the_thread_that_created_the_ring() {
        let group = ThreadGroup::new(std::process::id(), &["target-"], &[40])
            .expect("/proc contains this process");
        let names = [
            (10, "target-0"),
            (11, "iou-wrk-10"),
            (12, "iou-sqp-10"),
            (20, "fb-bench-0"),
            (21, "iou-wrk-20"),
            (40, "worker"),
            (41, "iou-wrk-40"),
            (50, "iou-wrk-x"),
        ];
        let all: Vec<_> = names.iter().map(|(id, name)| (*id, (*name).to_owned())).collect();
        assert_eq!(group.select(&all), [10, 40, 11, 12, 41]);
    }

    #[test]
    fn a_reused_thread_id_does_not_reduce_the_total() {
        let mut seen = Seen::default();
        let ms = Duration::from_millis;
        seen.note(7, ms(30));
        seen.note(7, ms(40));
        seen.note(7, ms(5));
        seen.note(8, ms(1));
        assert_eq!(seen.total(), ms(46));
    }

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(
            parse_schedstat("566351521 898065 116\n"),
            Some(Duration::from_nanos(566_351_521))
        );
        assert_eq!(parse_schedstat("0 0 1\n"), None);
        let stat = "7608 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 54 2 0 0 20 0 1 0 1";
        assert_eq!(parse_stat(stat), Some(Duration::from_millis(560)));
        assert_eq!(parse_stat("nonsense"), None);
        let status = "Name:\tx\nVmHWM:\t  99 kB\nVmRSS:\t    1536 kB\n";
        assert_eq!(parse_resident(status), Some(1536 * 1024));
        assert_eq!(parse_resident("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn the_processor_time_of_a_process_is_read_by_its_id() {
        let own = OtherProcess::new(std::process::id()).expect("/proc contains this process");
        burn(Duration::from_millis(1));
        assert!(own.cpu_time() >= Duration::from_millis(1));
        assert!(resident_memory_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert!(OtherProcess::new(u32::MAX).is_err());
        assert!(resident_memory_bytes(u32::MAX).is_none());
    }

    #[test]
    fn sleeps_are_counted() {
        let before = sleeps().expect("Linux reports the number of sleeps");
        std::thread::sleep(Duration::from_millis(1));
        assert!(sleeps().expect("Linux reports the number of sleeps") > before);
    }
}
