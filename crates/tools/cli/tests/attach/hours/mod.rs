//! A stress test of loop devices for `ROUGH_MINUTES`. It kills processes of the attachment and the
//! target, alone and together. It detaches the disk by force, and delays data on the network. No
//! acknowledged write may be lost, or be overwritten later by an older one.
//!
//! `ROUGH_MINUTES=20 ROUGH_SEED=7 cargo test -p farblock --test attach hours -- --ignored
//! --nocapture`

mod line;
mod writers;

use crate::attached::{Attachments, Target};
use crate::support::{signal, until};
use farblock_random::Random;
use line::Line;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use writers::Scene;

const DISK_BYTES: u64 = 16 << 20;
const WRITERS: u64 = 6;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Server,
    ServerTwice,
    Target,
    ServerAndTarget,
    /// Data of the dead server arrive after the data of its successor.
    ServerWithLateData,
    /// A path is lost, and its data arrive later.
    LateData,
    StoppedTarget,
    ServerOfStoppedTarget,
    // The following faults remove the device.
    Both,
    SupervisorFirst,
    Forced,
    ForcedWithLateData,
    ForcedWithStoppedTarget,
    BothWithLateData,
    StoppedServerForced,
}

use Fault::*;

const FAULTS: [Fault; 15] = [
    Server,
    ServerTwice,
    Target,
    ServerAndTarget,
    ServerWithLateData,
    LateData,
    StoppedTarget,
    ServerOfStoppedTarget,
    Both,
    SupervisorFirst,
    Forced,
    ForcedWithLateData,
    ForcedWithStoppedTarget,
    BothWithLateData,
    StoppedServerForced,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("the text is a number"))
}

struct Stand {
    attachments: Attachments,
    target: Target,
    lines: Vec<Line>,
    scene: Arc<Scene>,
    random: Random,
    generation: u64,
}

impl Stand {
    fn new(seed: u64) -> Stand {
        let attachments = Attachments::new();
        let target = Target::new(&attachments, DISK_BYTES);
        let lines = (0..1 + seed % 2).map(|_| Line::to(&target.server.address)).collect();
        let scene = Arc::<Scene>::default();
        let random = Random::new(seed);
        Stand { attachments, target, lines, scene, random, generation: 0 }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn pause(&mut self, longest_ms: u64) {
        thread::sleep(Duration::from_millis(self.below(longest_ms + 1)));
    }

    fn attach(&mut self) {
        let nqn = &self.target.server.nqn;
        let url = |line: &Line| format!("nvme+tcp://{}/{nqn}?ns=1", line.address);
        let urls: Vec<String> = self.lines.iter().map(url).collect();
        let args = ["--as", "fuse", "--name", "rough", "--reconnect-delay", "200ms"];
        let more = ["--keep-alive", "2"];
        let args: Vec<&str> = urls.iter().map(String::as_str).chain(args).chain(more).collect();
        let mut path = String::new();
        until("the disk is attached", || {
            let outcome = self.attachments.run([&["attach", "--json"], &args[..]].concat());
            if outcome.code != Some(0) {
                eprintln!("not attached yet: {}", outcome.stderr);
                return false;
            }
            path = outcome.json()["use"]["path"]
                .as_str()
                .expect("the JSON contains the path")
                .to_owned();
            true
        });
        self.generation += 1;
        self.scene.may_fail.store(false, Ordering::SeqCst);
        self.scene.idle.store(0, Ordering::SeqCst);
        *self.scene.device.lock().expect("no holder panics") = Some((self.generation, path));
    }

    /// Removes the device with `how`, and creates a new one.
    fn take_away(&mut self, how: impl FnOnce(&mut Stand)) {
        self.scene.may_fail.store(true, Ordering::SeqCst);
        how(self);
        until("all writers closed the device", || {
            self.check();
            self.scene.idle.load(Ordering::SeqCst) == WRITERS
        });
        self.attach();
    }

    /// Fails early if a writer has panicked, since waiting for the writer would be in vain.
    fn check(&self) {
        assert!(!self.scene.wrong.load(Ordering::SeqCst), "a writer failed; its output is above");
    }

    fn pid(&self, of: &str) -> u32 {
        let mut found = None;
        until("the server has a pid", || {
            let text = std::fs::read_to_string(self.attachments.folder("rough").join(of));
            found = text.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
            found.is_some()
        });
        found.expect("processes that were found above")
    }

    fn kill(&self, of: &str) {
        // The process may already be dead.
        let _ = std::process::Command::new("kill").args(["-9", &self.pid(of).to_string()]).output();
    }

    fn force(&self) {
        self.attachments.run(["detach", "rough", "--force"]).ok();
    }

    fn hold(&self) {
        self.lines.iter().for_each(Line::hold);
    }

    fn let_go(&self) {
        self.lines.iter().for_each(Line::let_go);
    }

    fn restart_target(&mut self) {
        self.target.kill();
        self.pause(1500);
        self.target.restart(&self.attachments);
    }

    /// Waits until every writer has made progress.
    fn wait_for_progress(&self) {
        let before = self.scene.writes.load(Ordering::SeqCst);
        until("all writers progress", || {
            self.check();
            self.scene.writes.load(Ordering::SeqCst) > before + 100
        });
    }

    fn go_wrong(&mut self, fault: Fault) {
        match fault {
            Server => self.kill("server-pid"),
            ServerTwice => {
                self.kill("server-pid");
                self.pause(150);
                self.kill("server-pid");
            }
            Target => self.restart_target(),
            ServerAndTarget => {
                self.kill("server-pid");
                self.restart_target();
            }
            ServerWithLateData => {
                self.hold();
                self.pause(50);
                self.kill("server-pid");
                self.pause(1500);
                self.let_go();
            }
            LateData => {
                let at = self.below(self.lines.len() as u64) as usize;
                self.lines[at].hold();
                self.pause(6000);
                self.lines[at].let_go();
            }
            StoppedTarget => {
                self.target.server.signal("STOP");
                self.pause(4000);
                self.target.server.signal("CONT");
            }
            ServerOfStoppedTarget => {
                self.target.server.signal("STOP");
                self.pause(50);
                self.kill("server-pid");
                self.pause(2000);
                self.target.server.signal("CONT");
            }
            _ => self.take_away(|stand| stand.take_it_away(fault)),
        }
    }

    fn take_it_away(&mut self, fault: Fault) {
        match fault {
            SupervisorFirst => {
                self.kill("pid");
                self.pause(500);
                self.kill("server-pid");
            }
            Forced => self.force(),
            ForcedWithLateData | ForcedWithStoppedTarget => {
                let stop = matches!(fault, ForcedWithStoppedTarget);
                if stop {
                    self.target.server.signal("STOP")
                } else {
                    self.hold()
                }
                self.pause(50);
                self.force();
                // The next attachment starts while old data are still in transit.
                let (server, late) = (self.target.server.id, self.below(1500));
                self.lines.iter().for_each(|line| line.let_go_after(Duration::from_millis(late)));
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(late));
                    if stop {
                        signal(server, "CONT");
                    }
                });
            }
            StoppedServerForced => {
                signal(self.pid("server-pid"), "STOP");
                self.force();
            }
            _ => {
                if matches!(fault, BothWithLateData) {
                    self.hold();
                    self.pause(50);
                }
                self.kill("pid");
                self.kill("server-pid");
                let late = Duration::from_millis(self.below(1500));
                self.lines.iter().for_each(|line| line.let_go_after(late));
            }
        }
    }
}

#[test]
#[ignore = "runs for ROUGH_MINUTES"]
fn no_acknowledged_write_is_lost_or_overwritten_by_an_older_one() {
    let minutes = number("ROUGH_MINUTES", 1);
    let seed = number("ROUGH_SEED", 1);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut stand = Stand::new(seed);
    stand.attach();
    let writers: Vec<_> = (0..WRITERS).map(|it| writers::start(&stand.scene, it)).collect();
    let mut faults = 0;
    while Instant::now() < end {
        stand.wait_for_progress();
        let fault = FAULTS[stand.below(FAULTS.len() as u64) as usize];
        eprintln!("{fault:?}");
        stand.go_wrong(fault);
        faults += 1;
    }
    stand.wait_for_progress();
    let scene = Arc::clone(&stand.scene);
    scene.over.store(true, Ordering::SeqCst);
    let expected: Vec<_> =
        writers.into_iter().map(|it| it.join().expect("the thread does not panic")).collect();
    stand.attachments.detach("rough");
    let image =
        std::fs::File::open(stand.attachments.scratch.path("disk.img")).expect("the file opens");
    expected.iter().for_each(|expected| expected.check(&image));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::SeqCst);
    eprintln!(
        "seed {seed}: {faults} faults in {minutes} min, {} writes, {} fsyncs, {} reads, {} failed",
        count(&scene.writes),
        count(&scene.syncs),
        count(&scene.reads),
        count(&scene.failed)
    );
}
