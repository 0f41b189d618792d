//! Who has a file locked. The kernel says so, of each descriptor, in `/proc`: that is never stale,
//! missing, or another process's by now, as what is recorded may be.

use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// Ends the processes at once that have this file locked, whoever may be recorded; whether there
/// were any.
pub(in super::super::super) fn kill_holder(lock: &Path, _: &str) -> bool {
    // As links in /proc have it.
    let Ok(lock) = lock.canonicalize() else { return false };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).filter(|pid| kill_if(*pid, |pid| holds(pid, &lock))).count()
        > 0
}

/// Ends this process and none that has got its number since, if it is the one.
fn kill_if(pid: Pid, is_it: impl FnOnce(Pid) -> bool) -> bool {
    // Before it is looked at: what is looked at is this process then, or this one is gone.
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    if !is_it(pid) {
        return false;
    }
    let killed = match process {
        Ok(process) => rustix::process::pidfd_send_signal(process, Signal::KILL),
        // Before Linux 5.3: at once after the look.
        Err(Errno::NOSYS) => rustix::process::kill_process(pid, Signal::KILL),
        Err(error) => Err(error),
    };
    killed.is_ok()
}

/// Whether a process has this file open and locked. Nothing is asked of the file systems that its
/// other files are on: one of those may be what does not answer.
fn holds(pid: Pid, lock: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let descriptors = match fs::read_dir(process.join("fd")) {
        Ok(descriptors) => descriptors.flatten(),
        // Those of a process that has read a key are root's to see.
        Err(error) => return error.kind() == io::ErrorKind::PermissionDenied && took(pid, lock),
    };
    let mut ours =
        descriptors.into_iter().filter(|it| fs::read_link(it.path()).is_ok_and(|to| to == lock));
    ours.any(|it| {
        let info = fs::read_to_string(process.join("fdinfo").join(it.file_name()));
        info.is_ok_and(|info| info.lines().any(is_lock))
    })
}

/// Whether a process has locked this file itself, and somebody has it locked so still. Everybody
/// may read who did; a server does it itself, and hands it on to nobody.
fn took(pid: Pid, lock: &Path) -> bool {
    let (Ok(file), Ok(locks)) = (fs::metadata(lock), fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let (device, inode) = (file.dev(), file.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| is_taken(line, pid, &place))
}

/// `1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`. Whoever waits for it has an arrow before.
fn is_taken(line: &str, pid: Pid, place: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().skip(1).take(5).collect();
    words == ["FLOCK", "ADVISORY", "WRITE", pid.to_string().as_str(), place]
}

/// `lock:   1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`.
fn is_lock(line: &str) -> bool {
    line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE")
}

#[cfg(test)]
mod tests {
    use super::super::{is_locked, lock};
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn whoever_may_not_look_at_descriptors_sees_who_locked_it() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("server");
        let (own, other) = (rustix::process::getpid(), Pid::INIT);
        let locked = lock(&path).expect("nobody has it");
        assert!(took(own, &path) && !took(other, &path));
        fs::write(place.path().join("another"), "").expect("written");
        assert!(!took(own, &place.path().join("another")) && !took(own, &place.path().join("no")));
        drop(locked);
        assert!(!took(own, &path));
        // A lock that others may have besides is none.
        let file = fs::File::open(&path).expect("it opens");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).expect("it is locked");
        assert!(!took(own, &path));
        let pid = Pid::from_raw(359).expect("a number");
        let is_taken = |line: &str| is_taken(line, pid, "00:13:11691");
        assert!(is_taken("1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF"));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF",
            "1: POSIX  ADVISORY  WRITE 359 00:13:11691 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 3590 00:13:11691 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 359 00:13:116910 0 EOF",
            "1: FLOCK",
            "",
        ] {
            assert!(!is_taken(other), "{other}");
        }
    }

    #[test]
    fn who_has_it_locked_and_nobody_else() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("server").canonicalize();
        assert!(path.is_err() && !kill_holder(&place.path().join("server"), "1"));
        let locked = lock(&place.path().join("server")).expect("nobody has it");
        let path = place.path().join("server").canonicalize().expect("it is there");
        let own = rustix::process::getpid();
        assert!(holds(own, &path));
        // One that has it from us, as a supervisor has it from whoever started it.
        let start = |stdin: Stdio| Command::new("sleep").arg("600").stdin(stdin).spawn();
        let copy = locked.try_clone().expect("a copy");
        let mut has = start(copy.into()).expect("it starts");
        // One that only looks.
        let mut looks = start(fs::File::open(&path).expect("it opens").into()).expect("it starts");
        drop(locked);
        assert!(!holds(own, &path) && is_locked(&path));
        // What is recorded says nothing.
        assert!(kill_holder(&path, &looks.id().to_string()));
        assert_eq!(has.wait().expect("a child").code(), None, "it was killed");
        assert!(!is_locked(&path) && !kill_holder(&path, &looks.id().to_string()));
        assert!(looks.try_wait().expect("a child").is_none(), "it lives");
        looks.kill().expect("it is ours");
        looks.wait().expect("a child");
    }
}
