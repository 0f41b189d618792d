//! `farblock demo --group`: three targets share one file as a group with etcd, while leadership
//! moves and the leader is killed.
//!
//! ```text
//!              ------> m1 --+
//!   the load   ------> m2 --+--> one file      the leader alone does I/O
//!   (a disk)   ------> m3 --+
//!                        \--- etcd
//! ```

use super::args::DemoArgs;
use super::load::{Load, write_and_compare};
use super::parts::{Etcd, Folder, Target};
use super::stage::{NQN, attached};
use super::teller::{Teller, seconds};
use super::{LOOK_EVERY, WAIT_LIMIT, conclude, counted, load};
use crate::error::{Failure, Result, os};
use farblock_admin_client::Client;
use farblock_host::{Disk, Url};
use farblock_program::args::Global;
use farblock_program::output;
use farblock_program::signals::Stop;
use serde_json::{Value, json};
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const MEMBERS: usize = 3;
/// The size of the shared file in bytes.
const BYTES: u64 = 64 << 20;
/// The time for which the host waits for a leader before it gives its disk up.
const GIVEN_UP: Duration = Duration::from_secs(60);

pub(super) fn run(args: &DemoArgs, global: &Global) -> Result<()> {
    let stop = Stop::install_with_hangup()?;
    let mut stage = Stage::set()?;
    let disk = stage.connect(global)?;
    output::print(&introduction(&stage.dashboard()))?;
    let load = Load::default();
    let (told, seconds) = std::thread::scope(|scope| {
        for number in 0..load::WRITERS {
            let (disk, load) = (&disk, &load);
            scope.spawn(move || write_and_compare(disk, number, load));
        }
        let mut teller = Teller::new(&stop, &load, args, global);
        let mut show = Show { every: args.every, moves: 0, kills: 0 };
        let told = show.play(&mut stage, &mut teller);
        let told = told.map(|()| (show, teller.longest.take()));
        let seconds = teller.began.elapsed().as_secs_f64();
        load.stop();
        (told, seconds)
    });
    drop(disk);
    drop(stage);
    let (show, longest) = told?;
    let faults = format!(
        "{}, {}.",
        counted(show.moves, "planned move"),
        counted(show.kills, "leader killed")
    );
    conclude(&load, seconds, &faults, longest)
}

fn introduction(dashboard: &str) -> String {
    format!(
        "Three targets, m1 to m3, share one file as a group; etcd keeps its records.\n\
         One member, the leader, does all I/O. A host with paths to all members writes\n\
         and verifies its data, while leadership moves and the leader is killed.\n\n\
         dashboard at {dashboard}\n\
         Press Ctrl-C to stop.\n\n"
    )
}

fn name(member: usize) -> String {
    format!("m{}", member + 1)
}

/// The sequence of events.
struct Show {
    every: Duration,
    moves: u64,
    kills: u64,
}

impl Show {
    /// Shows each event once, and again until the demonstration's time is over.
    fn play(&mut self, stage: &mut Stage, teller: &mut Teller<'_>) -> Result<()> {
        let leader = stage.wait_for_leader(teller, |_| true)?;
        let Some(leader) = leader else { return Ok(()) };
        teller.say(&format!("{} leads, and all members share the file", name(leader)))?;
        loop {
            self.move_leader(stage, teller)?;
            self.kill_leader(stage, teller)?;
            if teller.is_over() || !teller.has_end() {
                return Ok(());
            }
        }
    }

    fn move_leader(&mut self, stage: &mut Stage, teller: &mut Teller<'_>) -> Result<()> {
        let Some(from) = self.rest(stage, teller)? else { return Ok(()) };
        let to = (from + 1) % MEMBERS;
        let (from, target) = (name(from), name(to));
        teller.say(&format!("planned move: ctl group move 1 {target}"))?;
        let before = teller.mark();
        stage.order(&json!({ "order": "move", "ana_group": 1, "member": target }))?;
        self.moves += 1;
        if stage.wait_for_leader(teller, |leader| leader == to)?.is_none() {
            return Ok(());
        }
        settle(stage, teller, before)?;
        stage.order(&json!({ "order": "unpin", "ana_group": 1 }))?;
        let took = teller.took(&format!("leadership moved from {from} to {target}"));
        teller.say(&format!("{target} leads: {took}"))
    }

    fn kill_leader(&mut self, stage: &mut Stage, teller: &mut Teller<'_>) -> Result<()> {
        let Some(victim) = self.rest(stage, teller)? else { return Ok(()) };
        let lost = name(victim);
        teller.say(&format!("the leader {lost} is killed (kill -9)"))?;
        let before = teller.mark();
        stage.kill(victim);
        self.kills += 1;
        let Some(leader) = stage.wait_for_leader(teller, |leader| leader != victim)? else {
            return Ok(());
        };
        settle(stage, teller, before)?;
        let took = teller.took(&format!("the leader {lost} was killed"));
        teller.say(&format!("{} leads: {took}", name(leader)))?;
        stage.start(victim)?;
        teller.say(&format!("{lost} has restarted"))
    }

    /// Waits for the interval between two events. Returns the leader, or `None` if the
    /// demonstration is over.
    fn rest(&self, stage: &mut Stage, teller: &Teller<'_>) -> Result<Option<usize>> {
        let begin = Instant::now();
        while begin.elapsed() < self.every && !teller.is_over() {
            stage.check()?;
            std::thread::sleep(LOOK_EVERY.min(self.every));
        }
        match teller.is_over() {
            true => Ok(None),
            false => stage.wait_for_leader(teller, |_| true),
        }
    }
}

/// Waits until each writer has done two more operations than in `before`.
fn settle(stage: &mut Stage, teller: &Teller<'_>, before: [u64; load::WRITERS]) -> Result<()> {
    let begin = Instant::now();
    while !teller.has_settled(before) && begin.elapsed() < WAIT_LIMIT && !teller.is_stopped() {
        stage.check()?;
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The parts of the running demonstration. The order of the fields is the required drop order.
struct Stage {
    members: Vec<Option<Target>>,
    addresses: Vec<SocketAddr>,
    etcd: Etcd,
    folder: Folder,
}

impl Stage {
    fn set() -> Result<Stage> {
        let folder = Folder::new()?;
        let etcd = Etcd::start(&folder.path)?;
        let file = folder.path.join("disk.img");
        File::create(&file).and_then(|file| file.set_len(BYTES)).map_err(|error| {
            Failure::run(format_args!(
                "cannot make {}: {}; set TMPDIR to another folder",
                file.display(),
                os(&error)
            ))
        })?;
        let mut stage = Stage { members: Vec::new(), addresses: Vec::new(), etcd, folder };
        for member in 0..MEMBERS {
            stage.addresses.push(super::parts::free_port()?);
            stage.members.push(None);
            stage.start(member)?;
        }
        Ok(stage)
    }

    fn control(&self, member: usize) -> std::path::PathBuf {
        self.folder.path.join(format!("{}.sock", name(member)))
    }

    fn start(&mut self, member: usize) -> Result<()> {
        let (folder, name) = (self.folder.path.as_path(), name(member));
        let text = |path: &Path| path.display().to_string();
        let words = [
            format!("file:{}", text(&folder.join("disk.img"))),
            "--nqn".to_owned(),
            NQN.to_owned(),
            "--group=demo".to_owned(),
            format!("--etcd={}", self.etcd.url),
            format!("--member={name}"),
            format!("--listen={}", self.addresses[member]),
            format!("--control={}", text(&self.control(member))),
            format!("--state-dir={}", text(&folder.join(format!("state-{name}")))),
            "--disk-flight=500ms".to_owned(),
            "--ui=127.0.0.1:0".to_owned(),
        ];
        self.members[member] = Some(Target::start(folder, &name, &words)?);
        Ok(())
    }

    fn kill(&mut self, member: usize) {
        if let Some(mut target) = self.members[member].take() {
            target.kill();
        }
    }

    fn dashboard(&self) -> String {
        let first = self.members.iter().flatten().next();
        first.and_then(|first| first.said.dashboard.clone()).unwrap_or_default()
    }

    /// Fails if a process has stopped, although the demonstration did not kill it.
    fn check(&mut self) -> Result<()> {
        let members = self.members.iter_mut().enumerate();
        let mut ended = members.filter_map(|(at, it)| Some((name(at), it.as_mut()?.ended()?)));
        match ended.next() {
            Some((name, last)) => {
                Err(Failure::run(format_args!("the member {name} stopped unexpectedly: {last}")))
            }
            None => Ok(()),
        }
    }

    /// The index of a member that runs.
    fn living(&self) -> usize {
        self.members.iter().position(Option::is_some).expect("at least one member always runs")
    }

    /// Passes an order to the group, through any member.
    fn order(&self, order: &Value) -> Result<()> {
        let client = Client::new(self.control(self.living()));
        let answer = client.ask("POST", "/v1/group", None, Some(order)).map_err(Failure::run)?;
        match answer.is_success() {
            true => Ok(()),
            false => Err(Failure::run(format_args!(
                "the group refuses an order: {}",
                answer.json()["detail"].as_str().unwrap_or_default()
            ))),
        }
    }

    /// The member that leads and may do I/O.
    fn leader(&self) -> Option<usize> {
        let client = Client::new(self.control(self.living()));
        let group = client.ask("GET", "/v1/group", None, None).ok()?.json();
        let ana_group = &group["ana_groups"][0];
        let leader = ana_group["leader"].as_str().filter(|_| ana_group["phase"] == "serving")?;
        (0..MEMBERS).find(|member| name(*member) == leader)
    }

    /// Waits for a leader. Returns `None` after a signal.
    fn wait_for_leader(
        &mut self,
        teller: &Teller<'_>,
        is_it: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>> {
        let begin = Instant::now();
        while !teller.is_stopped() {
            if let Some(leader) = self.leader().filter(|leader| is_it(*leader)) {
                return Ok(Some(leader));
            }
            self.check()?;
            if begin.elapsed() > WAIT_LIMIT {
                let limit = seconds(WAIT_LIMIT);
                return Err(Failure::run(format_args!("no member leads after {limit}")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    fn connect(&self, global: &Global) -> Result<Disk> {
        let url = |address: &SocketAddr| format!("nvme+tcp://{address}/{NQN}?ns=1").parse();
        let urls: Vec<Url> =
            self.addresses.iter().map(url).collect::<Result<_, _>>().map_err(Failure::run)?;
        attached(&urls, global, GIVEN_UP)
    }
}
