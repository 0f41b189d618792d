//! Tests of `farblock serve` as a service: notifications and restarts. The service manager holds
//! the listening socket, so hosts notice a restart only as a pause.
#![cfg(target_os = "linux")]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Url};
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Scratch, Server, WAIT_LIMIT, finish, until};

const NQN: &str = "nqn.2026-11.org.farblock:restarted";

/// Returns `farblock serve` with `third` as descriptor 3, as systemd passes a socket.
fn handed<S: AsRef<OsStr>>(scratch: &Scratch, third: Stdio, args: &[S]) -> Command {
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_farblock"), "serve"]).args(args);
    scratch.prepare(&mut command);
    command.stdin(third);
    command
}

fn held(socket: &TcpListener) -> Stdio {
    OwnedFd::from(socket.try_clone().expect("the descriptor is duplicated")).into()
}

/// Writes and reads data back until `stop`. Returns the duration of the longest round.
fn load(disk: &Disk, stop: &AtomicBool, rounds: &AtomicU64) -> Duration {
    let mut blocks = Blocking::new(disk).expect("the queue opens");
    let mut back = vec![0; 512];
    let mut longest = Duration::ZERO;
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begin = Instant::now();
        let data = support::noise(round, 512);
        blocks.write(round % 64, &data).expect("the write waits, and succeeds");
        // Also read a block that was written before the restart.
        let earlier = round.saturating_sub(63);
        blocks.read(earlier % 64, &mut back).expect("the read waits, and succeeds");
        assert!(back == support::noise(earlier, 512), "round {earlier}: wrong data");
        longest = longest.max(begin.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    longest
}

/// Connects repeatedly, since the socket must listen all the time. Returns the number of
/// connections.
fn strangers(socket: &TcpListener, stop: &AtomicBool) -> u64 {
    let address = socket.local_addr().expect("the socket has an address");
    let mut connected = 0;
    while !stop.load(Ordering::Relaxed) {
        TcpStream::connect(address).expect("the socket accepts connections at all times");
        connected += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    connected
}

#[test]
fn io_pauses_during_a_restart_with_a_passed_socket() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let args = ["--nqn", NQN, &disk];
    let start = || Server::start(handed(&scratch, held(&socket), &args));
    let server = Mutex::new(start());
    let address = server.lock().expect("no holder panics").address.clone();
    assert_eq!(address, socket.local_addr().expect("the socket has an address").to_string());
    let url: Url = format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("the URL is valid");
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (longest, connected) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&disk, &stop, &rounds));
        let others = scope.spawn(|| strangers(&socket, &stop));
        let goes_on = || {
            let before = rounds.load(Ordering::Relaxed);
            until("the load continues", || {
                load.is_finished() || rounds.load(Ordering::Relaxed) > before + 200
            });
        };
        for _ in 0..5 {
            goes_on();
            let mut running = server.lock().expect("no holder panics");
            running.signal("TERM");
            until("the target exits", || running.has_ended());
            *running = start();
        }
        goes_on();
        stop.store(true, Ordering::Relaxed);
        (
            load.join().expect("the thread does not panic"),
            others.join().expect("the thread does not panic"),
        )
    });
    assert!(connected > 0);
    // The machine may be busy, so the limit is generous. `--nocapture` prints the measured time.
    assert!(longest < WAIT_LIMIT, "{longest:?}");
    println!("5 restarts, {connected} connections meanwhile, longest pause of I/O {longest:?}");
}

#[test]
fn a_target_notifies_its_service_manager() {
    let scratch = Scratch::new();
    let manager = UnixDatagram::bind(scratch.path("notify")).expect("the socket is bound");
    manager.set_read_timeout(Some(WAIT_LIMIT)).expect("the socket accepts the timeout");
    let told = || {
        let mut buffer = [0; 1024];
        let length = manager.recv(&mut buffer).expect("the target sends a notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut command = scratch.command(["serve", "mem:1MiB", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", scratch.path("notify"));
    let server = Server::start(command);
    let ready = told();
    assert!(ready.starts_with("READY=1\nSTATUS=sharing 1 namespace at 127.0.0.1:"), "{ready}");
    server.stop();
    assert!(told().starts_with("STOPPING=1\n"));
}

#[test]
fn a_passed_descriptor_that_is_no_listening_socket_is_refused() {
    let scratch = Scratch::new();
    let connected = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let connected = TcpStream::connect(connected.local_addr().expect("the socket has an address"))
        .expect("the connection opens");
    for third in [Stdio::null(), OwnedFd::from(connected).into()] {
        let outcome = finish(handed(&scratch, third, &["mem:1MiB"]), b"");
        outcome.fails_in_a_line(2, &["$LISTEN_FDS", "socket 1", "ListenStream=ADDR:PORT"]);
    }
}
