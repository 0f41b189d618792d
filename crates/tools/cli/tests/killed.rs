//! Kills a target at every step of saving a change. A restarted target must have the old or the new
//! state, complete, and continue with it.
#![cfg(target_os = "linux")]

mod support;

use farblock_admin_client::Client;
use farblock_state::{Document, Kept};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use support::{Scratch, Server, WAIT_LIMIT};

const NQN: &str = "nqn.2026-11.org.farblock:killed";
const OTHER: &str = "nqn.2026-11.org.farblock:other";
const HOST: &str = "nqn.2026-11.org.farblock:host";

#[derive(Clone, Copy, Debug)]
enum Moment {
    /// At this event of the state file or its temporary file.
    Seen(ReadFlags),
    /// After a partial write, caused by a limit on the file size.
    Half,
    /// This time after the request.
    After(Duration),
    /// When the target confirms the change.
    Answered,
}

const MOMENTS: [Moment; 9] = [
    Moment::Seen(ReadFlags::CREATE),
    Moment::Seen(ReadFlags::MODIFY),
    Moment::Half,
    Moment::Seen(ReadFlags::CLOSE_WRITE),
    Moment::Seen(ReadFlags::MOVED_TO),
    Moment::Answered,
    Moment::After(Duration::ZERO),
    Moment::After(Duration::from_micros(500)),
    Moment::After(Duration::from_millis(3)),
];

/// The number of times that the target is killed at each moment, each time during a different
/// change.
const ROUNDS: usize = 3;

/// A limit on the file size in bytes, smaller than every state.
const HALF: u64 = 700;

/// Returns the states to request in turn: changes in one step, in several steps, and a change that
/// moves a disk.
fn states(begun: &Value) -> Vec<Document> {
    let disk = |size: u64| json!({ "path": "disk.img", "size": size });
    let host = json!({ HOST: { "limits": { "iops": 100_000 } } });
    let ours = |namespaces: Value, hosts: Value| {
        let mut state = begun.clone();
        let memory = state["subsystems"][NQN]["namespaces"]["1"].clone();
        state["subsystems"][NQN]["allow_any_host"] = json!(hosts.as_object().unwrap().is_empty());
        state["subsystems"][NQN]["hosts"] = hosts;
        state["subsystems"][NQN]["namespaces"] = namespaces;
        state["subsystems"][NQN]["namespaces"]["1"] = memory;
        state
    };
    let mut two = ours(json!({}), host.clone());
    two["subsystems"][OTHER] = json!({ "namespaces": { "1": disk(1 << 20) } });
    [
        begun.clone(),
        ours(json!({ "2": disk(1 << 20) }), json!({})),
        ours(json!({ "2": disk(512 << 10) }), json!({})),
        ours(json!({ "3": disk(1 << 20), "4": { "path": "mem:1MiB" } }), host),
        two,
    ]
    .map(|state| Document::parse(&state.to_string()).expect("the document is valid"))
    .into()
}

/// Watches the folder of the state file.
struct Watch(OwnedFd);

impl Watch {
    fn new(scratch: &Scratch) -> Watch {
        let watch = inotify::init(CreateFlags::NONBLOCK).expect("inotify works");
        let events = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, scratch.path("kept"), events)
            .expect("the folder can be watched");
        Watch(watch)
    }

    /// Waits for one of these events.
    fn wait_for(&self, wanted: ReadFlags) {
        let begin = Instant::now();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().intersects(wanted) => return,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => std::hint::spin_loop(),
                Err(error) => panic!("{error}"),
            }
            assert!(begin.elapsed() < WAIT_LIMIT, "{wanted:?} does not happen");
        }
    }
}

fn client(scratch: &Scratch) -> Client {
    Client::new(scratch.path("c.sock"))
}

fn start(scratch: &Scratch) -> Server {
    scratch.serve(["--nqn", NQN, "--control", "c.sock", "--persist", "kept/state.json", "mem:1MiB"])
}

/// Requests a state. Returns the HTTP status, or `None` if the target was killed during the
/// request.
fn ask(client: &Client, state: &Document) -> Option<u16> {
    let state = serde_json::from_str(&state.to_json()).expect("the text is JSON");
    let answer = client.ask("PUT", "/v1/state", None, Some(&state)).ok()?;
    assert!(matches!(answer.status, 200 | 507), "{}", answer.body);
    Some(answer.status)
}

/// Returns the target's state, and checks that its namespaces agree with it.
fn shared(client: &Client) -> Document {
    let said = client.ask("GET", "/v1/state", None, None).expect("the target answers").body;
    let document = Document::parse(&said).expect("the state is valid");
    let status = client.ask("GET", "/v1/status", None, None).expect("the target answers").json();
    let mut found = BTreeSet::new();
    for subsystem in status["subsystems"].as_array().expect("the JSON contains the list") {
        let nqn = subsystem["nqn"].as_str().expect("the JSON contains the name");
        for namespace in subsystem["namespaces"].as_array().expect("the JSON contains the list") {
            let bytes = namespace["bytes"].as_u64();
            found.insert((
                nqn.to_owned(),
                namespace["nsid"].as_u64().expect("the JSON contains the number"),
                bytes,
            ));
        }
    }
    let mut said = BTreeSet::new();
    for (nqn, subsystem) in &document.subsystems {
        for (nsid, namespace) in &subsystem.namespaces {
            // The other disks are RAM disks of this size.
            said.insert((nqn.clone(), u64::from(*nsid), namespace.size.or(Some(1 << 20))));
        }
    }
    assert_eq!(found, said);
    document
}

/// Kills a target at this moment of a change. Returns whether the change must have been saved.
fn kill_at(moment: Moment, scratch: &Scratch, server: Server, new: &Document) -> bool {
    let pid = Pid::from_raw(server.id.cast_signed()).expect("the process id is positive");
    let kill = || kill_process(pid, Signal::KILL).expect("the process still runs");
    let watch = Watch::new(scratch);
    let client = client(scratch);
    let answered = std::thread::scope(|scope| {
        if let Moment::Half = moment {
            let limit = Rlimit { current: Some(HALF), maximum: Some(HALF) };
            prlimit(Some(pid), Resource::Fsize, limit).expect("the limit is set");
        }
        let asked = scope.spawn(|| ask(&client, new));
        match moment {
            Moment::Seen(event) => watch.wait_for(event),
            Moment::After(time) => std::thread::sleep(time),
            Moment::Half | Moment::Answered => {
                let answered = asked.join().expect("the thread does not panic");
                kill();
                return answered;
            }
        }
        kill();
        asked.join().expect("the thread does not panic")
    });
    match moment {
        Moment::Half => assert_eq!(answered, Some(507), "the target did not report a full disk"),
        Moment::Answered => assert_eq!(answered, Some(200)),
        _ => {}
    }
    let ended = server.wait();
    assert_eq!(ended.code, None, "the process ended by itself: {}", ended.stderr);
    answered == Some(200) || matches!(moment, Moment::Seen(ReadFlags::MOVED_TO))
}

/// Returns the saved state. Fails if the file is damaged.
fn kept(scratch: &Scratch) -> Document {
    let text = std::fs::read_to_string(scratch.path("kept/state.json"))
        .expect("the state file is readable");
    let kept: Kept = serde_json::from_str(&text).unwrap_or_else(|e| panic!("torn: {e}: {text}"));
    kept.shared
}

#[test]
fn a_target_killed_during_a_change_has_the_old_or_the_new_state() {
    let scratch = Scratch::new();
    scratch.disk("disk.img", 1 << 20);
    std::fs::create_dir(scratch.path("kept")).expect("the folder is created");
    let mut server = start(&scratch);
    let begun =
        client(&scratch).ask("GET", "/v1/state", None, None).expect("the target answers").json();
    let states = states(&begun);
    let (mut at, mut old, mut new) = (0, 0, 0);
    for round in 0..ROUNDS * MOMENTS.len() {
        // Advance the state first, so that each moment meets a different change in each round.
        for _ in 0..1 + round / MOMENTS.len() {
            at = (at + 1) % states.len();
            assert_eq!(ask(&client(&scratch), &states[at]), Some(200));
        }
        let (before, after) = (&states[at], &states[(at + 1) % states.len()]);
        let moment = MOMENTS[round % MOMENTS.len()];
        let is_made = kill_at(moment, &scratch, server, after);
        let found = kept(&scratch);
        server = start(&scratch);
        assert_eq!(shared(&client(&scratch)), found, "{moment:?}");
        if found == *after {
            at = (at + 1) % states.len();
            new += 1;
        } else {
            assert_eq!(found, *before, "{moment:?} of round {round}");
            assert!(!is_made, "{moment:?} of round {round}: a created object is missing");
            old += 1;
        }
    }
    println!("{old} times the old state, {new} times the new one");
    assert!(old > 0 && new > 0);
    // Files that the last kill left must not disturb the next start, which removes them.
    assert_eq!(ask(&client(&scratch), &states[(at + 1) % states.len()]), Some(200));
    let left = std::fs::read_dir(scratch.path("kept")).expect("the folder is readable");
    let mut left: Vec<_> =
        left.map(|one| one.expect("the entry is readable").file_name()).collect();
    left.sort();
    assert_eq!(left, ["state.json", "state.json.lock"]);
    server.stop();
}
