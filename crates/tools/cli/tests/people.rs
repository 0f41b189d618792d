//! Tests of typical command lines, and of their results.

mod support;

use support::Scratch;

#[test]
fn serve_refuses_a_url_that_is_no_disk() {
    let scratch = Scratch::new();
    let outcome = scratch.run(["serve", "http://x"]).fails_in_a_line(2, &["is a URL"]);
    assert!(!outcome.stderr.contains("truncate"), "{}", outcome.stderr);
}

#[test]
fn commands_without_json_output_refuse_the_option() {
    let scratch = Scratch::new();
    scratch.run(["--json", "detach", "x"]).fails_in_a_line(2, &["no --json"]);
    let help = scratch.run(["--help"]).ok().out();
    assert!(help.contains("Exit codes: 0 success, 1 failure, 2"), "{help}");
}

#[cfg(target_os = "linux")]
#[test]
fn serve_warns_of_ram_disks_larger_than_the_memory() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:8TiB"]);
    server.signal("TERM");
    let stderr = server.wait().stderr;
    assert!(stderr.contains("RAM disks of 8 TiB are more than the"), "{stderr}");
    let server = scratch.serve(["mem:8TiB", "--quiet"]);
    server.signal("TERM");
    assert_eq!(server.wait().stderr, "");
}

#[cfg(target_os = "linux")]
#[test]
fn file_names_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let odd = scratch.path(".").join(std::ffi::OsStr::from_bytes(b"odd-\xff.img"));
    std::fs::write(&odd, [7; 4096]).unwrap();
    let name = |text: &str| std::ffi::OsString::from(text);
    scratch.run([name("copy"), odd.clone().into(), name("copy.img")]).ok();
    assert_eq!(support::read(scratch.path("copy.img")), [7; 4096]);
    let server = scratch.serve([&odd]);
    let again = scratch.path(".").join(std::ffi::OsStr::from_bytes(b"again-\xfe.img"));
    let url = server.url(1);
    scratch.run([name("read"), url.into(), name("-o"), again.clone().into()]).ok();
    assert_eq!(support::read(&again), [7; 4096]);
    server.stop();
    let bench = ["--rw", "read", "--runtime", "0.5", "--ramp-time", "0"].map(name);
    scratch.run([name("bench"), again.into()].into_iter().chain(bench)).ok();
}

/// Opens a terminal. Returns the user's side and the program's side.
#[cfg(target_os = "linux")]
fn terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::os::unix::ffi::OsStrExt;
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let name = ptsname(&person, Vec::new()).unwrap();
    let name = std::ffi::OsStr::from_bytes(name.as_bytes());
    let program = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    (person.into(), program)
}

/// Checks that one Control-D on a terminal ends the input.
#[cfg(target_os = "linux")]
#[test]
fn one_control_d_ends_the_input_from_a_terminal() {
    use std::io::Write;
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    let (mut person, program) = terminal();
    let mut command = scratch.command(["write", &server.url(1)]);
    command.stdin(program).stdout(std::process::Stdio::piped());
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(command);
    person.write_all(b"hello\n\x04").unwrap();
    let output = support::wait(child);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("wrote 6 bytes"), "{stderr}");
    server.stop();
}

#[cfg(target_os = "linux")]
#[test]
fn data_are_not_written_to_a_terminal() {
    let scratch = Scratch::new();
    let (_person, stdout) = terminal();
    let mut command = scratch.command(["copy", "mem:1MiB", "-"]);
    command.stdout(stdout);
    support::finish(command, b"").fails_in_a_line(2, &["would go to the terminal", "xxd"]);
}

#[test]
fn whoami_prints_the_host_nqn_that_a_target_must_allow() {
    let scratch = Scratch::new();
    let said = scratch.run(["whoami", "--json"]).ok().json();
    let text = scratch.run(["whoami"]).ok().out();
    let name = said["host_nqn"].as_str().expect("the JSON contains the name");
    let id = said["host_id"].as_str().expect("the JSON contains the identifier");
    let folder = said["kept_in"].as_str().expect("the JSON contains the folder");
    assert!([name, id, folder].iter().all(|part| text.contains(part)), "{text}");
    let server = scratch.serve(["mem:1MiB", "--allow-host", name]);
    scratch.run(["id", &server.url(1)]).ok();
    let other = format!("{}&hostnqn=nqn.2026-11.org.example:other", server.url(1));
    scratch.run(["id", &other]).fails(1, &["cannot connect"]);
    server.stop();
}

/// Checks that every connecting command accepts the host's name and identifier.
#[test]
fn every_connecting_command_accepts_the_host_identity_options() {
    const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    let named = format!("nqn.2014-08.org.nvmexpress:uuid:{ID}");
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB", "--allow-host", &named]);
    let (url, file, address) = (server.url(1), scratch.disk("a.img", 1 << 20), &server.address);
    for command in [
        &["id", &url][..],
        &["read", &url, "-o", &file],
        &["write", &url, "--input", &file],
        &["copy", &file, &url],
        &["bench", &url, "--rw", "randread", "--runtime", "500ms"],
        &["doctor", &url],
    ] {
        let with = |more: &[&str]| scratch.run([command, more].concat());
        let refused = with(&[]);
        assert_eq!(refused.code, Some(1), "{command:?}: {}", refused.stderr);
        // One option is enough, because the identifier is part of the name.
        with(&["--hostnqn", &named]).ok();
        with(&["--hostid", ID]).ok();
    }
    let discover = |host: &str| scratch.run(["discover", address, "--hostnqn", host]).ok().out();
    assert!(discover(&named).contains(&server.nqn));
    assert!(!discover("nqn.2026-11.h:other").contains(&server.nqn));
    // The parameter of a URL works like the option. The same value in both is not a contradiction.
    let named_there = format!("nvme+tcp://{address}/?hostnqn={named}");
    for command in
        [&["discover", &named_there][..], &["discover", &named_there, "--hostnqn", &named]]
    {
        assert!(scratch.run(command).ok().out().contains(&server.nqn), "{command:?}");
    }
    for (option, own) in [("hostnqn", "nqn.2026-11.h:a"), ("hostid", ID)] {
        let other = match option {
            "hostid" => "11234567-89ab-cdef-0123-456789abcdef",
            _ => "nqn.2026-11.h:b",
        };
        let url = format!("{url}&{option}={other}");
        let option = format!("--{option}");
        let parts = &[own, other, "keep one of them"];
        for command in ["id", "doctor", "attach", "discover"] {
            scratch.run([command, &url, &option, own]).fails_in_a_line(2, parts);
        }
        let same = scratch.run(["id", &url, &option, other]);
        assert!(!same.stderr.contains("keep one"), "{}", same.stderr);
    }
    scratch.run(["id", &url, "--hostid", "me"]).fails(2, &["a UUID", "farblock whoami"]);
    server.stop();
}
