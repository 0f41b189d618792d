//! Checks that every invalid input gives one sentence and an exit code, and never a panic.

mod support;

#[cfg(target_os = "linux")]
use std::process::Command;
use support::{Scratch, finish};

#[test]
fn farblock_without_a_command_prints_usage() {
    let scratch = Scratch::new();
    let outcome = scratch.run::<&str>([]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("Usage: farblock"), "{}", outcome.stderr);
    let help = scratch.run(["--help"]).ok();
    assert!(help.out().contains("farblock serve disk.img"));
    for command in ["serve", "discover", "id", "read", "write", "copy", "bench", "completions"] {
        let help = scratch.run([command, "--help"]).ok().out();
        assert!(help.contains("Example"), "{command}: {help}");
    }
    let version = scratch.run(["--version"]).ok().out();
    assert_eq!(version, format!("farblock {}\n", env!("CARGO_PKG_VERSION")));
    assert!(scratch.run(["completions", "bash"]).ok().out().contains("complete"));
}

const NQN: &str = "nqn.2026-11.org.example:a";

#[test]
fn invalid_options_fail_in_one_line() {
    let scratch = Scratch::new();
    let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:a";
    for (args, parts) in [
        (&["serve"] as &[&str], &["PATH"] as &[&str]),
        (&["serve", "mem:1MiB", "--block-size", "1000"], &["use 512 or 4096"]),
        (&["serve", "mem:1MiB", "--listen", "nowhere"], &["--listen", "nowhere"]),
        (&["serve", "mem:1MiB", "--listen", "127.0.0.1:x"], &["not a port"]),
        (&["serve", "mem:1MiB", "--listen", "4421"], &["not an address", "127.0.0.1:4421"]),
        (
            &["serve", "mem:1MiB", "--listen", "127.0.0.1:1", "--listen", "127.0.0.1:1"],
            &["127.0.0.1:1 is listed twice", "leave one out"],
        ),
        (
            &["serve", "mem:1MiB", "--listen", "127.0.0.1:1", "--listen", "0.0.0.0:1"],
            &["0.0.0.0:1 stands for every address, including 127.0.0.1:1", "leave 127.0.0.1:1"],
        ),
        (&["serve", "mem:1MiB", "--nqn", "nqn.disk"], &["nqn.", "for example"]),
        (&["serve", "mem:1MiB", "--allow-host", "nqn.me"], &["--allow-host", "for example"]),
        (&["serve", "mem:1MiB", "--cores", "3-1"], &["backwards"]),
        (&["serve", "mem:1MiB", "--config", "x"], &["cannot be used with"]),
        (&["serve", "mem:1MiB", "--engine", "epoll"], &["auto, uring or portable"]),
        (&["serve", "mem:lots"], &["must begin with a number"]),
        (&["serve", "mem:1GB"], &["write 1GiB"]),
        (&["serve", "nvme+tcp://127.0.0.1/n"], &["is a remote disk"]),
        (&["serve", "mem:1MiB", "--nqn", "nqn.2014-08.org.nvmexpress.discovery"], &["--nqn"]),
        (&["discover", "a b"], &["ADDR:PORT"]),
        (&["discover", "127.0.0.1:0"], &["not a port"]),
        (&["id", "127.0.0.1"], &["start with nvme+tcp://"]),
        (&["id", "nvme+tcp://127.0.0.1"], &["names no subsystem", "farblock discover"]),
        (&["read", "nvme+tcp://127.0.0.1/n?ns=0"], &["not a namespace"]),
        (&["read", "nvme+tcp://127.0.0.1/n?ns=1&ns=2"], &["twice", "keep one"]),
        (&["read", url, "--length", "1GB"], &["write 1GiB"]),
        (&["read", url, "--offset", "-1"], &["-1"]),
        (&["read", url, "--json"], &["--output"]),
        (&["write", url, "--length", "x"], &["must begin with a number"]),
        (&["copy", url, url], &["to itself"]),
        (&["copy", "mem:lots", "a"], &["must begin with a number"]),
        (&["frobnicate"], &["frobnicate"]),
        (&["ctl", "resize", NQN, "x", "1GiB"], &["<NSID>", "write 1 to 10240"]),
        (&["ctl", "remove-namespace", NQN, "-1"], &["<NSID>", "write 1 to 10240"]),
        (&["ctl", "limit", NQN, "1", "--iops", "-3"], &["--iops", "from 1", "as in 5000"]),
        (&["ctl", "limit", NQN, "1", "--mib", "99999999999999"], &["--mib", "17592186044415"]),
        (&["ctl", "limit", NQN, "1", "--burst-ms", "0"], &["--burst-ms", "1 to 60000"]),
        (&["ctl", "limit-host", NQN, NQN, "--weight", "x"], &["--weight", "1 to 1000"]),
        (&["ctl", "ana-group", NQN, "1", "129"], &["<GROUP>", "1 to 128"]),
        (&["ctl", "copy-speed", NQN, "1", "-1"], &["<MIB>", "from 0 to"]),
        (&["ctl", "allow-host", NQN, NQN, "--host-id", "x"], &["--host-id", "not a UUID"]),
        (&["ctl", "resize", NQN, "1", "-1GiB"], &["-1GiB is negative"]),
        (&["serve", "mem:1MiB", "--metrics", "9420"], &["write 127.0.0.1:9420"]),
        (&["serve", "mem:1MiB", "--ui", "127.0.0.1"], &["has no port"]),
        (&["bench", "--runtime", "-5s"], &["-5s is negative"]),
        (&["bench", "--iodepth", "-1"], &["--iodepth", "1 to 65535"]),
        (&["keys", "new", "--length", "7"], &["32, 48 or 64"]),
        (&["copy", "-1", "a"], &["./-1"]),
        (&["serve", "mem:1MiB", "-q", "-v"], &["cannot be used with"]),
    ] {
        // Only Unix systems support changing a running target.
        let steers = args[0] == "ctl" || args.contains(&"--metrics") || args.contains(&"--ui");
        if steers && !cfg!(unix) {
            continue;
        }
        let outcome = scratch.run(args);
        eprintln!("{args:?}: {}", outcome.stderr.lines().next().unwrap_or_default());
        for jargon in ["invalid digit", "target type", "-- -", "socket address syntax"] {
            assert!(!outcome.stderr.contains(jargon), "{args:?}: {}", outcome.stderr);
        }
        outcome.fails(2, parts);
    }
}

/// Gives one option before the command's name and the other after it, because the parser itself
/// misses this conflict.
#[test]
fn poll_and_spin_together_are_refused() {
    let both = ["--poll", "serve", "mem:1MiB", "--listen", "127.0.0.1:0", "--spin", "efficient"];
    Scratch::new().run(both).fails_in_a_line(2, &["leave one of the two out"]);
}

#[test]
fn serve_refuses_missing_empty_and_misaligned_disks() {
    let scratch = Scratch::new();
    let empty = scratch.disk("empty.img", 0);
    let odd = scratch.disk("odd.img", 1000);
    let serve = |path: &str| scratch.run(["serve", "--listen", "127.0.0.1:0", path]);
    let tool = if cfg!(windows) { "fsutil" } else { "truncate" };
    serve("missing.img").fails_in_a_line(1, &["missing.img", "does not exist", tool]);
    serve(&scratch.text("")).fails_in_a_line(1, &["is a directory"]);
    // Only for a plain new file does the error advise creating the disk.
    for missing in ["limit:9/s,missing.img", "/dev/missing", "miror:a,missing"] {
        if cfg!(windows) && missing.starts_with("/dev") {
            continue; // On Windows this is a plain file.
        }
        let refused = serve(missing).fails_in_a_line(1, &["does not exist"]);
        assert!(!refused.stderr.contains(tool), "{}", refused.stderr);
    }
    serve(&empty).fails_in_a_line(1, &["empty.img", "is empty", "its size"]);
    serve(&odd).fails_in_a_line(1, &["odd.img", "1000 bytes", "512-byte blocks", "1024"]);
    if cfg!(unix) {
        serve("/dev/null").fails_in_a_line(1, &["neither a regular file nor a block device"]);
    }
    serve("stripe:64KiB,mem:1MiB,none.img").fails_in_a_line(1, &["none.img"]);
    let disk = scratch.disk("disk.img", 1 << 20);
    let other_user =
        if cfg!(target_os = "linux") { "as another disk" } else { "another disk of this process" };
    scratch
        .run(["serve", "--listen", "127.0.0.1:0", &disk, &disk])
        .fails_in_a_line(1, &["in use", other_user]);
}

#[test]
fn a_disk_in_use_is_refused() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let server = scratch.serve([&disk]);
    scratch.run(["serve", "--listen", "127.0.0.1:0", &disk]).fails_in_a_line(1, &["in use"]);
    scratch.run(["copy", "mem:64KiB", &disk]).fails_in_a_line(1, &["in use", "URL"]);
    server.stop();
}

/// A loop device on a file. Dropping it detaches the device.
#[cfg(target_os = "linux")]
struct Loop(String);

#[cfg(target_os = "linux")]
impl Loop {
    fn over(file: &str) -> Loop {
        let made = Command::new("losetup").args(["--find", "--show", file]).output();
        match made {
            Ok(made) if made.status.success() => {
                Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned())
            }
            _ => support::cannot_check("this user may not make loop devices"),
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Checks that transfers neither replace the file under a loop device nor write to it.
#[cfg(target_os = "linux")]
#[test]
fn a_transfer_refuses_to_overwrite_the_file_of_a_loop_device() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let data = support::noise(1, 1 << 20);
    let disk = scratch.file("disk.img", &data);
    let inode = || std::fs::metadata(&disk).unwrap().ino();
    let before = inode();
    let device = Loop::over(&disk);
    let server = scratch.serve(["mem:1MiB"]);
    let url = server.url(1);
    for transfer in [["copy", "mem:64KiB", &disk], ["copy", &url, &disk]] {
        let refused = scratch.run(transfer);
        refused.fails_in_a_line(1, &["disk.img is in use", &device.0, "two writers"]);
    }
    let read = ["read", &url, "--output", &disk];
    scratch.run(read).fails_in_a_line(1, &["disk.img is in use", &device.0, "two writers"]);
    assert!(inode() == before && support::read(&disk) == data);
    drop(device);
    scratch.run(read).ok();
    assert!(support::read(&disk) == vec![0; 1 << 20]);
    server.stop();
}

#[test]
fn a_port_in_use_is_reported() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    scratch
        .run(["serve", "mem:1MiB", "--listen", &address])
        .fails_in_a_line(1, &[&address, "another program uses this port", "--listen", "port 0"]);
    #[cfg(unix)]
    for option in ["--metrics", "--ui"] {
        scratch
            .run(["serve", "mem:1MiB", "--listen", "127.0.0.1:0", option, &address])
            .fails_in_a_line(1, &[&address, "it is in use", option, "port 0"]);
    }
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let scratch = Scratch::new();
    scratch
        .run(["serve", "mem:1MiB", "--listen", "192.0.2.1:4420"])
        .fails_in_a_line(1, &["no such address", "0.0.0.0:4420"]);
}

#[test]
fn a_processor_that_does_not_exist_is_refused() {
    let scratch = Scratch::new();
    scratch
        .run(["serve", "mem:1MiB", "--listen", "127.0.0.1:0", "--cores", "4000"])
        .fails_in_a_line(1, &["processor 4000", "--cores"]);
}

#[test]
fn a_refused_connection_and_an_unknown_name_are_reported() {
    let scratch = Scratch::new();
    // No program listens on this port.
    let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:a";
    scratch.run(["id", url]).fails_in_a_line(1, &["refused", "is the target running"]);
    scratch.run(["read", url]).fails_in_a_line(1, &["refused"]);
    scratch.run_with(["write", url], b"x").fails_in_a_line(1, &["refused"]);
    scratch.run(["discover", "127.0.0.1:1"]).fails_in_a_line(1, &["refused"]);
    let unknown = "nvme+tcp://no-such-host.invalid/nqn.2026-11.org.example:a";
    scratch.run(["id", unknown]).fails_in_a_line(1, &["cannot be resolved"]);
}

#[test]
fn a_web_server_is_recognized_as_the_wrong_peer() {
    use std::io::{Read, Write};
    let scratch = Scratch::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 128]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let url = format!("nvme+tcp://{address}/nqn.2026-11.org.example:a");
    scratch.run(["id", &url]).fails_in_a_line(1, &["does not speak NVMe/TCP", "web server"]);
}

#[test]
fn copy_refuses_unusable_sources_and_destinations() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 4096);
    let copy = |from: &str, to: &str| scratch.run(["copy", from, to]);
    copy("missing.img", "new.img").fails_in_a_line(1, &["cannot read missing.img"]);
    copy(&scratch.text(""), "new.img").fails_in_a_line(1, &["is a directory"]);
    copy(&disk, &scratch.text("")).fails_in_a_line(1, &["is a directory"]);
    copy(&disk, "no/such/place.img").fails_in_a_line(1, &["make its directory first"]);
    copy(&disk, "./disk.img").fails_in_a_line(2, &["are the same"]);
    copy(&disk, "mem:512").fails_in_a_line(1, &["room for 512 bytes", "4 KiB", "nothing"]);
    scratch
        .run(["copy", "--length", "8KiB", &disk, "new.img"])
        .fails_in_a_line(2, &["has 4 KiB", "--length 8 KiB"]);
    assert_eq!(support::read(&disk).len(), 4096, "the file was changed");
    assert!(!scratch.path("new.img").exists(), "a file was created");
}

/// Root may read every file, so the binary runs as the user nobody.
#[cfg(unix)]
#[test]
fn files_without_access_permission_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let mode = |mode| {
        std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let run = |args: &[&str]| finish(scratch.command_of_nobody(args), b"");
    mode(0o000);
    run(&["serve", "--listen", "127.0.0.1:0", &disk])
        .fails_in_a_line(1, &["may not be read by this user"]);
    run(&["copy", &disk, "null:1MiB"]).fails_in_a_line(1, &["Permission denied", "permissions"]);
    mode(0o444);
    run(&["serve", "--listen", "127.0.0.1:0", &disk])
        .fails_in_a_line(1, &["may not be written by this user", "(--read-only)"]);
    run(&["copy", "mem:64KiB", &disk]).fails_in_a_line(1, &["Permission denied"]);
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let scratch = Scratch::new();
    let mut command = scratch.command(["completions", "zsh"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer);
    let outcome = finish(command, b"");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}
