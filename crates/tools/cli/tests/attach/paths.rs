//! Tests of several paths to one disk, one of which is cut under load, and of a disk that grows. A
//! successor is a server that replaces a killed one.

use crate::attached::{Attachments, Load, Target, run, wait_for_progress};
use crate::support::until;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A network between this machine and a target. The test can cut it.
struct Wire {
    address: String,
    target: Arc<Mutex<String>>,
    cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(target: &str) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the socket has an address").to_string();
        let (cut, streams) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let target = Arc::new(Mutex::new(target.to_owned()));
        let wire = Wire {
            address,
            target: Arc::clone(&target),
            cut: Arc::clone(&cut),
            streams: Arc::clone(&streams),
        };
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(target.lock().expect("no holder panics").as_str())
                else {
                    continue;
                };
                for (mut from, mut to) in [copies(&near, &far), copies(&far, &near)] {
                    thread::spawn(move || {
                        let _ = pass_on(&mut from, &mut to);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().expect("no holder panics").extend([near, far]);
            }
        });
        wire
    }

    /// Cuts all connections, even in the middle of a message.
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().expect("no holder panics").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connects the network to another target.
    fn lead_to(&self, target: &str) {
        self.cut();
        target.clone_into(&mut self.target.lock().expect("no holder panics"));
        self.mend();
    }

    fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

fn copies(from: &TcpStream, to: &TcpStream) -> (TcpStream, TcpStream) {
    (
        from.try_clone().expect("the descriptor is duplicated"),
        to.try_clone().expect("the descriptor is duplicated"),
    )
}

fn pass_on(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length])?;
    }
}

fn path_state(attachments: &Attachments, path: usize) -> String {
    attachments.status("fb0")["paths"][path]["state"]
        .as_str()
        .expect("the status contains the state")
        .to_owned()
}

#[test]
fn io_continues_on_the_other_path_when_one_is_cut() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let wires = [Wire::to(&target.server.address), Wire::to(&target.server.address)];
    let urls = wires
        .each_ref()
        .map(|wire| format!("nvme+tcp://{}/{}?ns=1", wire.address, target.server.nqn));
    let options = ["--as", "fuse", "--iopolicy", "round-robin", "--reconnect-delay", "100ms"];
    let device = attachments.attach(&[&[urls[0].as_str(), &urls[1]], &options[..]].concat());
    until("both paths are live", || attachments.status("fb0")["state"] == "live");
    let mut load = Load::start(&device, &[]);
    for (index, wire) in wires.iter().enumerate() {
        wait_for_progress(&device);
        wire.cut();
        until("the path is lost", || path_state(&attachments, index) == "reconnecting");
        assert_eq!(attachments.status("fb0")["state"], "degraded");
        // I/O must continue on the other path.
        wait_for_progress(&device);
        wire.mend();
        until("the path is live again", || path_state(&attachments, index) == "live");
        assert!(load.is_running(), "the load ended too early");
    }
    wait_for_progress(&device);
    load.finish();
    let table = attachments.run(["list"]).ok().out();
    assert_eq!(table.matches(": live, optimized").count(), 2, "{table}");
    attachments.detach("fb0");
    target.server.stop();
}

/// Checks that the block device grows if the namespace has grown when the target returns.
#[test]
fn the_device_grows_when_the_target_returns_with_a_larger_namespace() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, 32 << 20);
    let device = attachments.attach(&[&target.url(), "--as", "fuse", "--reconnect-delay", "100ms"]);
    run("mkfs.ext4", &["-q", &device]);
    target.kill();
    attachments.wait_for_state("fb0", "reconnecting");
    let image = std::fs::File::options().write(true).open(attachments.scratch.path("disk.img"));
    image.expect("the file opens").set_len(48 << 20).expect("the file is resized");
    target.restart(&attachments);
    until("the device is larger", || {
        run("blockdev", &["--getsize64", &device]).trim() == (48 << 20).to_string()
    });
    assert_eq!(attachments.status("fb0")["size_bytes"], 48 << 20);
    run("fsck.ext4", &["-f", "-p", &device]);
    run("resize2fs", &[&device]);
    attachments.detach("fb0");
    target.server.stop();
}

/// One of two paths is redirected to a target with another disk. `list` must report this, while the
/// other path serves. Once the path leads to the right disk again, it must work again.
#[test]
fn a_path_to_another_disk_reports_an_error_while_the_other_path_serves() {
    let attachments = Attachments::new();
    let other = attachments.scratch.disk("other.img", 16 << 20);
    let target = Target::new(&attachments, 16 << 20);
    let (address, nqn) = (&target.server.address, &target.server.nqn);
    let elsewhere = attachments.scratch.serve(["--nqn", nqn, &other]);
    let wire = Wire::to(address);
    let second = format!("nvme+tcp://{}/{nqn}?ns=1", wire.address);
    let options = ["--as", "nbd", "--no-device", "--reconnect-delay", "100ms"];
    attachments.attach(&[&[target.url().as_str(), &second], &options[..]].concat());
    until("both paths are live", || attachments.status("fb0")["state"] == "live");
    wire.lead_to(&elsewhere.address);
    until("the reason is shown", || {
        let table = attachments.run(["list"]).ok().out();
        table.lines().any(|line| {
            line.contains(&format!("path {second}: reconnecting"))
                && line.contains("is not the namespace of this disk")
        })
    });
    assert_eq!(attachments.status("fb0")["state"], "degraded");
    wire.lead_to(address);
    attachments.wait_for_state("fb0", "live");
    attachments.detach("fb0");
}

/// Checks that a second `attach` of an attached disk, with another address of its target, adds a
/// path, which the next server of the disk uses, too.
#[test]
fn attaching_a_used_disk_at_another_address_adds_a_path() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let [first, second] = [0; 2].map(|_| Wire::to(&target.server.address));
    let url = |wire: &Wire| target.url().replace(&target.server.address, &wire.address);
    let device = attachments.attach(&[&url(&first), "--as", "fuse"]);
    let mut load = Load::start(&device, &[]);
    wait_for_progress(&device);
    let added = attachments.run(["attach", &url(&second)]).ok();
    assert!(added.stderr.contains("added a path to fb0"), "{}", added.stderr);
    assert!(added.out().contains(&device), "{}", added.out());
    until("both are live", || [0, 1].iter().all(|&path| path_state(&attachments, path) == "live"));
    // The first path must not be needed any more.
    first.cut();
    wait_for_progress(&device);
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    until("the next server has the path", || path_state(&attachments, 1) == "live");
    wait_for_progress(&device);
    assert!(load.is_running());
    load.finish();
    // Adding the same path again must fail, and so must a path to another disk of the same name.
    let again = attachments.run(["attach", &url(&second), "--as", "fuse"]);
    again.fails_in_a_line(1, &["already attached as fb0"]);
    let other = attachments.scratch.disk("other.img", 32 << 20);
    let stranger = attachments.scratch.serve(["--nqn", target.nqn(), &other]);
    attachments.attach(&[&stranger.url(1), "--as", "fuse", "--name", "other"]);
    assert_eq!(attachments.status("fb0")["paths"].as_array().map(Vec::len), Some(2));
    attachments.detach("other");
    first.mend();
    attachments.detach("fb0");
}
