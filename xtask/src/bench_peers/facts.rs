//! Facts about a target with many connections: its processor time, memory and IOPS, and whether it
//! serves all of them.

use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::process::Process;
use super::sides::{Endpoint, Means, farblock};
use super::work::Backend;
use crate::hold::Held;

const IDLE_LOOK: Duration = Duration::from_secs(10);

/// A fact about the target, and whether the target meets the goal for it.
#[derive(Debug, Serialize)]
pub(crate) struct Fact {
    name: &'static str,
    what: &'static str,
    goal: &'static str,
    measured: Option<f64>,
    unit: &'static str,
    pub(crate) met: bool,
    error: Option<String>,
}

struct Served {
    process: Process,
    endpoints: Vec<Endpoint>,
}

const ONE: &[&str] = &["127.0.0.1:0"];
/// Two addresses. The client then has two addresses, too: a target gives at most half of its
/// connections to one client address.
const TWO: &[&str] = &["127.0.0.1:0", "[::1]:0"];

type Measure = fn(&Means, &Served) -> Result<f64, String>;

struct Question {
    name: &'static str,
    what: &'static str,
    goal: &'static str,
    unit: &'static str,
    listen: &'static [&'static str],
    measure: Measure,
    met: fn(f64) -> bool,
}

const QUESTIONS: [Question; 5] = [
    Question {
        name: "idle-cpu",
        what: "CPU of a target with 100 connected, idle queues",
        goal: "< 0.5",
        unit: "% of a core",
        listen: ONE,
        measure: idle_cpu,
        met: |percent| percent < 0.5,
    },
    Question {
        name: "memory",
        what: "resident memory of a target with 100 queues of depth 128, all in use",
        goal: "< 128",
        unit: "MiB",
        listen: ONE,
        measure: memory,
        met: |mib| mib < 128.0,
    },
    Question {
        name: "connections",
        what: "connections that one target serves at once",
        goal: "≥ 10000",
        unit: "connections",
        listen: TWO,
        measure: |means, served| Ok(hold(means, &served.endpoints, 10_000, 1000)?.served as f64),
        met: |served| served >= 10_000.0,
    },
    Question {
        name: "scaling-target-cpu",
        what: "CPU per I/O of the target, 1,000 connections ÷ 10, 1,000 reads in flight",
        goal: "≤ 3",
        unit: "ratio",
        listen: ONE,
        measure: scaling,
        met: |ratio| ratio <= 3.0,
    },
    Question {
        name: "scaling-iops",
        what: "IOPS, 1,000 connections ÷ 10, 1,000 reads in flight",
        goal: "≥ 0.33",
        unit: "ratio",
        listen: ONE,
        measure: |means, served| {
            let few = hold(means, &served.endpoints, 10, 1000)?;
            Ok(hold(means, &served.endpoints, 1000, 1000)?.iops / few.iops)
        },
        met: |ratio| ratio >= 0.33,
    },
];

pub(crate) fn measure(means: &Means, only: &[String]) -> Vec<Fact> {
    let name = |question: &Question| format!("fact {}", question.name);
    let asked = |question: &&Question| {
        let holds = |words: &String| words.split(' ').all(|word| name(question).contains(word));
        only.is_empty() || only.iter().any(holds)
    };
    QUESTIONS.iter().filter(asked).map(|question| answer(means, question)).collect()
}

/// The names of all facts, for `--list`.
pub(crate) fn names() -> impl Iterator<Item = String> {
    QUESTIONS.iter().map(|question| format!("fact {}: {}", question.name, question.what))
}

fn answer(means: &Means, question: &Question) -> Fact {
    let listen: Vec<String> = question.listen.iter().map(ToString::to_string).collect();
    let served = farblock::serve_at(means, Backend::Null, &listen);
    let served = served.map(|(process, endpoints)| Served { process, endpoints });
    let result = served.and_then(|served| (question.measure)(means, &served));
    match &result {
        Ok(value) => eprintln!("fact {}: {value:.2} {}", question.name, question.unit),
        Err(sentence) => eprintln!("fact {}: {sentence}", question.name),
    }
    Fact {
        name: question.name,
        what: question.what,
        goal: question.goal,
        unit: question.unit,
        met: result.as_ref().is_ok_and(|value| (question.met)(*value)),
        measured: result.as_ref().ok().copied(),
        error: result.err(),
    }
}

pub(crate) const COLUMNS: [&str; 5] = ["figure", "unit", "goal", "measured", "met"];

impl Fact {
    /// The cells of this fact in a table.
    pub(crate) fn row(&self) -> Vec<String> {
        let measured = match (self.measured, &self.error) {
            (Some(value), _) => format!("{value:.2}"),
            (None, error) => error.clone().unwrap_or_default(),
        };
        let met = if self.met { "yes" } else { "no" }.to_owned();
        vec![self.what.to_owned(), self.unit.to_owned(), self.goal.to_owned(), measured, met]
    }
}

/// Starts the program that holds connections, and waits until all of them are connected.
fn start(
    means: &Means,
    endpoints: &[Endpoint],
    connections: u32,
    depth: u32,
    seconds: u64,
) -> Result<Process, String> {
    let mut command = Command::new(&means.xtask);
    command
        .arg("hold")
        .args(endpoints.iter().map(farblock::url))
        .args(["--connections", &connections.to_string(), "--depth", &depth.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    let mut process = Process::start(command, means.host_cpu)?;
    process.wait_for(|line| line.starts_with("holding ").then_some(()))?;
    Ok(process)
}

fn finish(process: Process) -> Result<Held, String> {
    let output = process.finish(Duration::from_secs(30))?;
    let line = output.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("hold printed no result: {error}"))
}

fn hold(
    means: &Means,
    endpoints: &[Endpoint],
    connections: u32,
    depth: u32,
) -> Result<Held, String> {
    finish(start(means, endpoints, connections, depth, 4)?)
}

fn idle_cpu(means: &Means, served: &Served) -> Result<f64, String> {
    let process = start(means, &served.endpoints, 100, 0, IDLE_LOOK.as_secs() + 3)?;
    std::thread::sleep(Duration::from_secs(1));
    let (at, before) = (Instant::now(), served.process.cpu_time());
    std::thread::sleep(IDLE_LOOK);
    let used = served.process.cpu_time().saturating_sub(before);
    let percent = used.as_secs_f64() / at.elapsed().as_secs_f64() * 100.0;
    finish(process).map(|_| percent)
}

fn memory(means: &Means, served: &Served) -> Result<f64, String> {
    let process = start(means, &served.endpoints, 100, 12_800, 4)?;
    std::thread::sleep(Duration::from_secs(3));
    let bytes = served.process.memory_bytes().ok_or("the target has exited")?;
    finish(process).map(|_| bytes as f64 / f64::from(1 << 20))
}

fn scaling(means: &Means, served: &Served) -> Result<f64, String> {
    let cost = |connections| {
        let process = start(means, &served.endpoints, connections, 1000, 4)?;
        let before = served.process.cpu_time();
        let held = finish(process)?;
        let used = served.process.cpu_time().saturating_sub(before);
        Ok::<f64, String>(used.as_secs_f64() / held.iops)
    };
    let few = cost(10)?;
    Ok(cost(1000)? / few)
}
