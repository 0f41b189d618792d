//! The scenes of a simulation: all hosts start, or a fault occurs and the affected hosts recover.

use crate::error::SimulationError;
use crate::limits;
use crate::report::{Connections, SceneReport, Times};
use crate::settings::Settings;
use crate::stage::{Counts, Stage};
use farblock_bench::cpu::{CpuSource, ThisProcess, resident_memory_bytes};
use farblock_bench::{Cancel, group};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The interval of progress reports, in real time.
const SHOW_PERIOD: Duration = Duration::from_millis(200);
/// The period in which the simulation counts accepted connections, to find the busiest second.
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scene {
    Start,
    /// This many targets die at once, and restart later.
    Restart(u32),
    /// The switch fails, and the hosts behind it lose all connections.
    Switch,
}

impl Scene {
    /// All scenes of a fleet.
    pub(crate) fn all(settings: &Settings) -> Vec<Scene> {
        let some = limits::RESTARTS.into_iter();
        let some = some.filter(|count| *count < settings.targets).map(Scene::Restart);
        let all = [Scene::Switch, Scene::Restart(settings.targets)];
        [Scene::Start].into_iter().chain(some).chain(all).collect()
    }

    fn name(self, settings: &Settings) -> String {
        match self {
            Scene::Start => "all hosts start".to_owned(),
            Scene::Restart(1) => "1 target dies".to_owned(),
            Scene::Restart(count) if count == settings.targets => "all targets die".to_owned(),
            Scene::Restart(count) => format!("{count} targets die"),
            Scene::Switch => "a switch is away".to_owned(),
        }
    }
}

/// Receives the scene and its progress.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&str, &str);

/// The state of a running scene.
struct Play<'a> {
    stage: &'a mut Stage,
    settings: Settings,
    name: String,
    begin: Duration,
    /// The virtual time at which the targets or the switch are up again. Before that, no host can
    /// recover.
    back: Duration,
    /// The number of targets to restart, and the time of the restart.
    restart: Option<(u32, Duration)>,
    hit: u64,
    /// The affected hosts that have not resumed I/O.
    waiting: BTreeSet<u32>,
    /// For each host that has resumed I/O, the time since the start of the scene.
    flowing: Vec<Duration>,
    before: Vec<Counts>,
    seconds: Seconds,
}

/// Counts the accepted connections of each second.
#[derive(Default)]
struct Seconds {
    next: Duration,
    last: Vec<u64>,
    busiest: u64,
    busiest_target: u64,
}

impl Seconds {
    fn count(&mut self, counts: &[Counts]) {
        let of_each = counts.iter().zip(&self.last).map(|(now, last)| now.accepted - last);
        let of_each: Vec<u64> = of_each.collect();
        self.busiest = self.busiest.max(of_each.iter().sum());
        self.busiest_target = self.busiest_target.max(of_each.into_iter().max().unwrap_or(0));
        self.last = counts.iter().map(|counts| counts.accepted).collect();
    }
}

/// Detects that recovery has stopped: targets refuse hosts, and no more hosts resume I/O.
struct Standstill {
    longest: Duration,
    flowing: usize,
    refused: u64,
    since: Duration,
}

impl Standstill {
    /// Whether no more hosts have resumed I/O for `longest`, while targets refused connections.
    /// `flowing` counts the hosts with I/O, `refused` the connections refused so far.
    fn is_reached(&mut self, now: Duration, flowing: usize, refused: u64) -> bool {
        if flowing != self.flowing {
            self.begin_anew(now, flowing, refused);
        }
        refused > self.refused && now - self.since >= self.longest
    }

    fn begin_anew(&mut self, now: Duration, flowing: usize, refused: u64) {
        *self = Self { longest: self.longest, flowing, refused, since: now };
    }
}

/// Runs a scene.
pub(crate) fn play(
    stage: &mut Stage,
    settings: Settings,
    scene: Scene,
    cancel: &Cancel,
    show: Show<'_>,
) -> Result<SceneReport, SimulationError> {
    let (real, cpu) = (Instant::now(), ThisProcess.cpu_time());
    let failed = stage.failed;
    let before = stage.counts();
    let begin = stage.now();
    let last = before.iter().map(|counts| counts.accepted).collect();
    let mut play = Play {
        stage,
        settings,
        name: scene.name(&settings),
        begin,
        back: begin,
        restart: None,
        hit: 0,
        waiting: BTreeSet::new(),
        flowing: Vec::new(),
        before,
        seconds: Seconds { next: begin + SECOND, last, ..Seconds::default() },
    };
    play.begin(scene);
    play.follow(cancel, show)?;
    let mut report = play.report();
    report.failed_operations = stage.failed - failed;
    report.cpu_seconds = ThisProcess.cpu_time().saturating_sub(cpu).as_secs_f64();
    report.real_seconds = real.elapsed().as_secs_f64();
    report.memory_bytes = resident_memory_bytes(std::process::id());
    Ok(report)
}

impl Play<'_> {
    fn begin(&mut self, scene: Scene) {
        let away = self.settings.away_time();
        if scene != Scene::Start {
            self.back = self.begin + away;
        }
        match scene {
            Scene::Start => {
                self.stage.bring_hosts_up();
                self.waiting = (0..self.settings.hosts).collect();
            }
            Scene::Restart(count) => {
                let hosts = 0..self.settings.hosts;
                let hit = hosts.filter(|&host| self.stage.probe(host, |it| it < count));
                self.waiting = hit.collect();
                (0..count).for_each(|target| self.stage.kill_target(target));
                self.restart = Some((count, self.begin + away));
            }
            Scene::Switch => {
                let count = self.settings.hosts.div_ceil(limits::SWITCHES);
                self.stage.cut_hosts(count, away);
                self.waiting = (0..count).collect();
                for host in 0..count {
                    self.stage.probe(host, |_| true);
                }
            }
        }
        self.hit = self.waiting.len() as u64;
        // The operations of some hosts may have completed already.
        for host in self.waiting.clone() {
            self.look_at(host);
        }
    }

    /// Checks whether the host has resumed I/O. If so, records its time and no longer waits for it.
    fn look_at(&mut self, host: u32) {
        if !self.stage.waits(host) && self.waiting.remove(&host) {
            self.flowing.push(self.stage.now() - self.begin);
        }
    }

    /// Waits until every affected host has resumed I/O.
    fn follow(&mut self, cancel: &Cancel, show: Show<'_>) -> Result<(), SimulationError> {
        let end = self.begin + limits::WAIT_LIMIT;
        let mut shown: Option<Instant> = None;
        let refused = |counts: &[Counts]| counts.iter().flat_map(|it| it.refused.values()).sum();
        let (flowing, before) = (self.flowing.len(), refused(&self.before));
        let longest = self.settings.standstill();
        let mut still = Standstill { longest, flowing, refused: before, since: self.begin };
        while (!self.waiting.is_empty() || self.restart.is_some()) && self.stage.now() < end {
            if cancel.is_cancelled() {
                return Err(SimulationError::Cancelled);
            }
            if shown.is_none_or(|at| at.elapsed() >= SHOW_PERIOD) {
                shown = Some(Instant::now());
                self.tell(show);
            }
            if let Some((count, _)) = self.restart.take_if(|(_, at)| *at <= self.stage.now()) {
                (0..count).try_for_each(|target| self.stage.start_target(target))?;
            }
            if self.seconds.next <= self.stage.now() {
                self.seconds.next += SECOND;
                let counts = self.stage.counts();
                self.seconds.count(&counts);
                let (now, flowing) = (self.stage.now(), self.flowing.len());
                if now <= self.back {
                    still.begin_anew(now, flowing, refused(&counts));
                } else if still.is_reached(now, flowing, refused(&counts)) {
                    break;
                }
            }
            let restart = self.restart.map(|(_, at)| at);
            let until = [Some(self.seconds.next), restart].into_iter().flatten().min();
            for host in self.stage.turn(until.unwrap_or(end))? {
                self.look_at(host);
            }
        }
        self.seconds.count(&self.stage.counts());
        Ok(())
    }

    fn tell(&self, show: Show<'_>) {
        let number = |count: u64| group(&count.to_string());
        let seconds = (self.stage.now() - self.begin).as_secs_f64();
        let Settings { hosts, targets, .. } = self.settings;
        let (hosts, targets) = (number(hosts.into()), number(targets.into()));
        let (flowing, hit) = (number(self.flowing.len() as u64), number(self.hit));
        show(
            &format!("{hosts} hosts, {targets} targets: {}", self.name),
            &format!("{flowing} of {hit} hosts do I/O after {seconds:.1} s"),
        );
    }

    fn report(self) -> SceneReport {
        let (mut accepted, mut refused) = (0, BTreeMap::new());
        for (now, before) in self.stage.counts().iter().zip(&self.before) {
            let counts = now.since(before);
            accepted += counts.accepted;
            for (reason, count) in counts.refused {
                *refused.entry(reason).or_insert(0) += count;
            }
        }
        SceneReport {
            name: self.name,
            hosts: self.hit,
            never: self.waiting.len() as u64,
            seconds: Times::new(self.flowing),
            connections: Connections {
                accepted,
                busiest_second: self.seconds.busiest,
                busiest_second_of_a_target: self.seconds.busiest_target,
                refused,
            },
            failed_operations: 0,
            cpu_seconds: 0.0,
            real_seconds: 0.0,
            memory_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_ends_when_refused_hosts_make_no_progress() {
        let second = Duration::from_secs;
        let mut still =
            Standstill { longest: second(60), flowing: 0, refused: 7, since: second(10) };
        assert!(!still.is_reached(second(100), 0, 7), "no target has refused a host");
        assert!(!still.is_reached(second(69), 0, 8), "the time limit has not passed");
        assert!(still.is_reached(second(70), 0, 8));
        assert!(!still.is_reached(second(71), 1, 9), "one more host does I/O");
        assert!(!still.is_reached(second(200), 1, 9), "no host was refused since then");
        assert!(still.is_reached(second(201), 1, 10));
        still.begin_anew(second(201), 1, 10);
        assert!(!still.is_reached(second(260), 1, 11), "the time starts anew");
        assert!(still.is_reached(second(261), 1, 11));
    }

    #[test]
    fn the_standstill_limit_grows_with_the_reconnect_delay() {
        let standstill = |text: &str| text.parse::<Settings>().expect("settings").standstill();
        assert_eq!(standstill("hosts=2,targets=2"), limits::STANDSTILL);
        assert_eq!(standstill("hosts=2,targets=2,reconnect=60"), Duration::from_secs(360));
    }
}
