//! The history of counters, in bounded memory. A page shows it for the time before the page opened.
//! The last minutes have one point per second, and older times have fewer points. Only a process
//! with a dashboard keeps a history.
//!
//! One history has at most [`POINTS`] points of [`SERIES`] four-byte numbers, 217 KB. A target
//! keeps its own history. `farblock ui` keeps one history for each node and one for the sum of all
//! nodes.

use crate::nodes::{Node, within};
use crate::steering::Steering;
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::routing::get;
use farblock_admin_api::{IoStats, Stats};
use hyper::{Response, header};
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// For each level, the seconds per point and the number of points. The levels cover a quarter of an
/// hour, three hours, a day, and a month. The page has the same levels.
const LEVELS: [(u64, usize); 4] = [(1, 900), (10, 1_080), (60, 1_440), (600, 4_320)];
/// The number of points of all levels together.
#[cfg(test)]
const POINTS: usize = 7_740;
/// The number of values per point: reads, writes, bytes read and bytes written per second; median
/// and 99th percentile of latency in microseconds; CPU utilization in percent. The page expects
/// this order.
const SERIES: usize = 7;
/// The name of the history of a target itself, and of the sum of all nodes.
const WHOLE: &str = "target";
/// The interval between two points of the finest level.
const EVERY: Duration = Duration::from_secs(1);
/// If two samples are further apart than this, the history has a gap between them.
const MOST_MISSED_MS: u64 = 5_000;
/// If the computed start time of a target changes by more than this, the target has restarted. A
/// smaller change is due to an adjusted clock.
const ANOTHER_MS: u64 = 2_000;

type Point = [f32; SERIES];

/// The points of one level. A new point replaces the oldest one.
struct Ring {
    step: u64,
    most: usize,
    points: VecDeque<Point>,
    /// The second in which the newest point starts.
    newest: u64,
    /// The sums and counts for the mean of the newest point.
    sums: [f64; SERIES],
    counts: [u32; SERIES],
}

impl Ring {
    fn new((step, most): (u64, usize)) -> Self {
        let points = VecDeque::with_capacity(most);
        Self { step, most, points, newest: 0, sums: [0.; SERIES], counts: [0; SERIES] }
    }

    fn push(&mut self, second: u64, point: &Point) {
        let start = second - second % self.step;
        if start > self.newest || self.points.is_empty() {
            self.open(start);
        }
        let Some(newest) = self.points.back_mut() else { return };
        for (series, value) in point.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            self.sums[series] += f64::from(*value);
            self.counts[series] += 1;
            newest[series] = (self.sums[series] / f64::from(self.counts[series])) as f32;
        }
    }

    /// Starts a new point, and fills the missed points with gaps.
    fn open(&mut self, start: u64) {
        let missed = start.saturating_sub(self.newest) / self.step;
        let missed = if self.points.is_empty() { 1 } else { missed.min(self.most as u64) };
        for _ in 0..missed {
            if self.points.len() == self.most {
                self.points.pop_front();
            }
            self.points.push_back([f32::NAN; SERIES]);
        }
        self.newest = start;
        (self.sums, self.counts) = ([0.; SERIES], [0; SERIES]);
    }

    fn write(&self, text: &mut String) {
        let Self { step, newest, .. } = self;
        let _ = write!(text, "{{\"step\":{step},\"newest\":{newest},\"series\":[");
        for series in 0..SERIES {
            text.push_str(if series == 0 { "[" } else { ",[" });
            for (index, point) in self.points.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                // Write as many digits as a chart needs.
                let _ = match point[series] {
                    value if !value.is_finite() => write!(text, "null"),
                    value if value >= 100. => write!(text, "{value:.0}"),
                    value => write!(text, "{value:.2}"),
                };
            }
            text.push(']');
        }
        text.push_str("]}");
    }
}

/// The history of one target, or of the sum of all targets.
struct Past([Ring; LEVELS.len()]);

impl Past {
    fn push(&mut self, second: u64, point: &Point) {
        self.0.iter_mut().for_each(|ring| ring.push(second, point));
    }
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<BTreeMap<String, Past>>>);

impl History {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Past>> {
        self.0.lock().expect("no lock holder panics")
    }

    fn push(&self, part: &str, second: u64, point: &Point) {
        let mut all = self.lock();
        if !all.contains_key(part) {
            all.insert(part.to_owned(), Past(LEVELS.map(Ring::new)));
        }
        if let Some(past) = all.get_mut(part) {
            past.push(second, point);
        }
    }

    /// The history of this node in the format of the page.
    fn written(&self, part: &str, now: u64) -> Option<String> {
        let all = self.lock();
        let past = all.get(part)?;
        let mut text = format!("{{\"now\":{now},\"levels\":[");
        for (index, ring) in past.0.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            ring.write(&mut text);
        }
        text.push_str("]}");
        Some(text)
    }

    /// The route at which the page reads the history.
    pub(crate) fn router(self) -> Router {
        Router::new().route("/history.json", get(answer)).with_state(self)
    }

    /// Records the counters of a target as long as this future runs. Does not start the measurement
    /// of latency, so the history has latency only while a client requests counters.
    pub(crate) async fn keep(self, steering: Arc<Steering>) {
        let mut before: Option<Stats> = None;
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let counted = steering.totals();
            let pace = before.as_ref().and_then(|before| Pace::between(before, &counted));
            if let Some(pace) = pace {
                self.push(WHOLE, seconds(), &pace.point(&counted.latency_bounds_us));
            }
            before = Some(counted);
        }
    }

    /// Records the counters of each node, and their sum.
    pub(crate) async fn keep_all(self, nodes: Arc<[Node]>) {
        let mut before: BTreeMap<String, Stats> = BTreeMap::new();
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let mut asked = JoinSet::new();
            for node in nodes.iter().cloned() {
                asked.spawn(async move {
                    let counted = within(node.get::<Stats>("/v1/stats?totals=true")).await;
                    (node.name, counted)
                });
            }
            let (now, mut sum, mut bounds) = (seconds(), None::<Pace>, Vec::new());
            for (name, counted) in asked.join_all().await {
                let Ok(counted) = counted else {
                    before.remove(&name);
                    continue;
                };
                let was = before.get(&name);
                if let Some(pace) = was.and_then(|was| Pace::between(was, &counted)) {
                    let point = pace.point(&counted.latency_bounds_us);
                    self.push(&format!("node {name}"), now, &point);
                    sum.get_or_insert_default().add(&pace, nodes.len());
                    bounds.clone_from(&counted.latency_bounds_us);
                }
                before.insert(name, counted);
            }
            if let Some(sum) = sum {
                self.push(WHOLE, now, &sum.point(&bounds));
            }
        }
    }
}

/// The time of the first call, and the seconds since 1970 at that time.
static BEGUN: LazyLock<(Instant, u64)> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), since.as_secs())
});

/// Seconds from a monotonic clock. With the wall clock, the history would get no points after the
/// clock was set back, until it reached the old time again. The page only needs the ages of points.
fn seconds() -> u64 {
    let (begun, second) = *BEGUN;
    second + begun.elapsed().as_secs()
}

#[derive(Deserialize)]
struct Asked {
    part: Option<String>,
}

async fn answer(State(history): State<History>, Query(asked): Query<Asked>) -> Response<Body> {
    let part = asked.part.as_deref().unwrap_or(WHOLE);
    let nothing = || "{\"now\":0,\"levels\":[]}".to_owned();
    let text = history.written(part, seconds()).unwrap_or_else(nothing);
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Rates per second, between two samples.
#[derive(Default)]
struct Pace {
    /// Reads, writes, bytes read, and bytes written, per second.
    done: [f64; 4],
    /// The number of reads and writes in each latency bucket.
    latency: Vec<f64>,
    /// The utilization in percent of all processors; NaN if the system does not report it.
    busy: f64,
}

impl Pace {
    /// The rates between two samples. `None` if the target has restarted or the samples are too far
    /// apart.
    fn between(was: &Stats, is: &Stats) -> Option<Self> {
        let ms = is.uptime_ms.checked_sub(was.uptime_ms).filter(|ms| *ms > 0)?;
        let began = |stats: &Stats| stats.time_ms.saturating_sub(stats.uptime_ms);
        if ms > MOST_MISSED_MS || began(is).abs_diff(began(was)) > ANOTHER_MS {
            return None;
        }
        let each = |was: u64, is: u64| is.saturating_sub(was) as f64 * 1000. / ms as f64;
        let done = |io: &IoStats| [io.reads, io.writes, io.read_bytes, io.written_bytes];
        let (first, last) = (done(&was.total), done(&is.total));
        let mut latency = Vec::new();
        let kinds = |stats: &Stats| {
            let IoStats { read_latency, write_latency, .. } = &stats.total;
            [read_latency.counts.clone(), write_latency.counts.clone()]
        };
        for (was, is) in kinds(was).iter().zip(&kinds(is)) {
            latency.resize(latency.len().max(is.len()), 0.);
            for (step, count) in is.iter().enumerate() {
                latency[step] += each(was.get(step).copied().unwrap_or(0), *count);
            }
        }
        let worked =
            |stats: &Stats| stats.cores.iter().map(|core| core.busy_ns).sum::<Option<u64>>();
        let cores = is.cores.len().max(1) as f64;
        let busy = worked(was).zip(worked(is)).map_or(f64::NAN, |(was, is)| each(was, is));
        Some(Self {
            done: std::array::from_fn(|index| each(first[index], last[index])),
            latency,
            busy: (busy / cores / 1e7).min(100.),
        })
    }

    /// Adds the rates of one node. The utilization is averaged over `nodes`.
    fn add(&mut self, other: &Self, nodes: usize) {
        for (sum, more) in self.done.iter_mut().zip(other.done) {
            *sum += more;
        }
        let steps = self.latency.len().max(other.latency.len());
        self.latency.resize(steps, 0.);
        for (sum, more) in self.latency.iter_mut().zip(&other.latency) {
            *sum += more;
        }
        self.busy += other.busy / nodes as f64;
    }

    fn point(&self, bounds: &[u64]) -> Point {
        let [reads, writes, read, written] = self.done;
        let (p50, p99) = (self.quantile(bounds, 0.5), self.quantile(bounds, 0.99));
        [reads, writes, read, written, p50, p99, self.busy].map(|value| value as f32)
    }

    /// A quantile of the latency in microseconds, interpolated within its bucket.
    fn quantile(&self, bounds: &[u64], share: f64) -> f64 {
        let mut left = self.latency.iter().sum::<f64>() * share;
        if left == 0. {
            return f64::NAN;
        }
        let bound = |step: usize| bounds.get(step).map(|bound| *bound as f64);
        for (step, count) in self.latency.iter().enumerate() {
            if left > *count {
                left -= count;
                continue;
            }
            let low = step.checked_sub(1).and_then(bound).unwrap_or(0.);
            return low + (bound(step).unwrap_or(low) - low) * (left / count);
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn counted(uptime_ms: u64, reads: u64) -> Stats {
        let mut total = serde_json::to_value(IoStats::default()).expect("JSON");
        total["reads"] = reads.into();
        total["read_bytes"] = (reads * 512).into();
        total["read_latency"]["counts"] = json!([reads / 2, reads / 2]);
        let busy_ns = uptime_ms * 250_000;
        let stats = json!({
            "uptime_ms": uptime_ms, "time_ms": 1_000_000 + uptime_ms,
            "latency_bounds_us": [50, 100],
            "connections": {
                "open": 0, "accepted": 0, "refused": {}, "faults": {}, "authenticated": 0,
                "not_authenticated": {},
            },
            "cores": [
                { "core": 0, "connections": 1, "busy_ns": busy_ns, "io": IoStats::default() },
            ],
            "subsystems": [], "hosts": [], "total": total, "other_hosts": IoStats::default(),
        });
        serde_json::from_value(stats).expect("counters")
    }

    #[test]
    fn counters_become_rates_unless_the_target_restarted() {
        let (was, is) = (counted(1_000, 100), counted(3_000, 300));
        let pace = Pace::between(&was, &is).expect("rates of a target that did not restart");
        assert_eq!(pace.point(&[50, 100]), [100., 0., 51_200., 0., 50., 99., 25.]);
        let mut both = Pace::default();
        both.add(&pace, 2);
        both.add(&pace, 2);
        assert_eq!(both.point(&[50, 100]), [200., 0., 102_400., 0., 50., 99., 25.]);
        assert!(Pace::between(&is, &was).is_none(), "no rates after a restart of the target");
        let another = Stats { time_ms: is.time_ms + 60_000, ..is.clone() };
        assert!(Pace::between(&was, &another).is_none());
        assert!(Pace::between(&was, &counted(10_000, 300)).is_none(), "no rates across a long gap");
    }

    #[test]
    fn the_history_uses_bounded_memory() {
        let history = History::default();
        for second in (0..40 * 86_400).step_by(100) {
            history.push(WHOLE, 1_700_000_000 + second, &[1.; SERIES]);
        }
        let all = history.lock();
        let points: usize = all[WHOLE].0.iter().map(|ring| ring.points.len()).sum();
        assert_eq!(points, POINTS);
        assert_eq!(LEVELS.iter().map(|(_, most)| most).sum::<usize>(), POINTS);
        assert!(all[WHOLE].0.iter().all(|ring| ring.points.capacity() <= 2 * ring.most));
    }

    #[test]
    fn older_points_are_coarser_and_gaps_stay_empty() {
        let history = History::default();
        assert_eq!(history.written(WHOLE, 0), None);
        let point = |reads: f32| {
            let mut point = [f32::NAN; SERIES];
            point[0] = reads;
            point
        };
        for (second, reads) in [(100, 2.), (101, 4.), (105, 200.), (112, 8.)] {
            history.push(WHOLE, second, &point(reads));
        }
        let text = history.written(WHOLE, 113).expect("the history has points");
        let told: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(told["now"], 113);
        let level = |index: usize| &told["levels"][index];
        let seconds = &level(0)["series"][0];
        assert_eq!(
            (seconds.as_array().map(Vec::len), &level(0)["newest"]),
            (Some(13), &112.into())
        );
        assert_eq!(
            (&seconds[0], &seconds[2], &seconds[12]),
            (&2.0.into(), &Value::Null, &8.0.into())
        );
        assert_eq!(level(1)["series"][0], json!([68.67, 8.0]));
        assert_eq!(level(1)["series"][1], json!([null, null]));
    }

    #[tokio::test]
    async fn recording_the_history_does_not_enable_latency_measurement() {
        let (_target, steering) = crate::trial::start(Arc::new(crate::trial::Opener));
        let history = History::default();
        let keeps = tokio::spawn(history.clone().keep(Arc::clone(&steering)));
        while history.written(WHOLE, 0).is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!steering.counts().measures_latency);
        keeps.abort();
    }
}
