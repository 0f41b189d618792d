//! Tests the binary against itself over loopback, with each engine.

mod support;

use std::io::{Read, Write};
use std::process::Stdio;
use support::{Outcome, Scratch, finish, noise, read};

const ENGINES: [&str; 2] = ["auto", "portable"];

#[test]
fn a_disk_is_discovered_identified_written_and_read() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let disk = scratch.disk("disk.img", 64 << 20);
        let server = scratch.serve(["--engine", engine, &disk, "mem:8MiB", "--block-size", "4096"]);
        let run = |args: &[&str]| scratch.run([args, &["--engine", engine]].concat()).ok();

        let found = run(&["discover", &server.address, "--json"]).json();
        let url = found["entries"].as_array().unwrap().iter().find_map(|one| one["url"].as_str());
        assert_eq!(url, Some(server.subsystem_url().as_str()));
        assert!(run(&["discover", &server.address]).out().contains(&server.nqn));

        let id = run(&["--json", "id", &server.subsystem_url()]).json();
        assert_eq!(id["controller"]["nqn"], server.nqn);
        assert_eq!(id["namespaces"][0]["bytes"], 64 << 20);
        assert_eq!(id["namespaces"][1]["block_size"], 4096);
        assert_ne!(id["namespaces"][0]["uuid"], id["namespaces"][1]["uuid"]);
        let text = run(&["id", &server.url(2)]).out();
        assert!(text.contains("8 MiB") && !text.contains("64 MiB"), "{text}");

        let data = noise(1, 20 << 20);
        let input = scratch.file("in.bin", &data);
        let written = run(&["write", &server.url(1), "--input", &input, "--json"]).json();
        assert_eq!(written["bytes"], data.len());
        let output = scratch.text("out.bin");
        run(&["read", &server.url(1), "--length", "20MiB", "--output", &output]);
        assert!(read(&output) == data, "{engine}: the data that was read differs");
        assert!(read(&disk)[..data.len()] == data, "{engine}: the data in the file differs");
        server.stop();
    }
}

#[test]
fn transfers_accept_ranges_that_are_not_block_aligned() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:4MiB", "--block-size", "4096"]);
    let url = server.url(1);
    let mut expected = noise(2, 4 << 20);
    scratch.run_with(["write", &url], &expected).ok();
    for (seed, offset, length) in [
        (3, 0, 1),
        (4, 4095, 2),
        (5, 5000, 100),
        (6, 8192, 4096),
        (7, 8191, 4098),
        (8, 100_000, 1_234_567),
        (9, (4 << 20) - 5, 5),
        (10, 524_287, 1_048_578),
        (11, 12_345, 0),
    ] {
        let data = noise(seed, length);
        let offset_text = offset.to_string();
        scratch.run_with(["write", &url, "--offset", &offset_text], &data).ok();
        expected[offset..offset + length].copy_from_slice(&data);
        let length_text = length.to_string();
        let part = scratch.run(["read", &url, "--offset", &offset_text, "--length", &length_text]);
        assert!(part.ok().stdout == data, "{length} bytes at {offset}");
    }
    assert!(scratch.run(["read", &url]).ok().stdout == expected, "other bytes changed");
    server.stop();
}

#[test]
fn copy_works_between_files_and_namespaces_in_all_directions() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let server = scratch.serve(["--engine", engine, "mem:8MiB", "mem:16MiB"]);
        let (first, second) = (server.url(1), server.url(2));
        let copy = |args: &[&str]| -> Outcome {
            scratch.run([&["copy", "--engine", engine], args].concat())
        };
        // The copy turns zeroes in the middle into a hole.
        let mut data = noise(12, 8 << 20);
        data[2 << 20..6 << 20].fill(0);
        let source = scratch.file("source.img", &data);
        copy(&[&source, &first]).ok();
        copy(&[&first, &second]).ok();
        // The copy replaces a longer file instead of overwriting its start.
        let result = scratch.disk("result.img", 32 << 20);
        copy(&[&second, &result, "--length", "8MiB"]).ok();
        assert!(read(&result) == data, "{engine}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let allocated = std::fs::metadata(&result).unwrap().blocks() * 512;
            assert!(allocated < 6 << 20, "{allocated} bytes are allocated for 4 MiB of data");
        }
        let summary = copy(&[&result, &scratch.text("again.img"), "--json"]).ok().json();
        assert_eq!(summary["bytes"], 8 << 20);
        assert!(read(scratch.path("again.img")) == data, "{engine}");

        copy(&[&second, &first]).fails_in_a_line(1, &["room for 8 MiB", "16 MiB"]);
        copy(&[&second, &second]).fails_in_a_line(2, &["to itself"]);
        let otherwise = second.replace("127.0.0.1", "localhost");
        copy(&[&second, &otherwise]).fails_in_a_line(2, &["are the same"]);
        copy(&[&first, "null:8MiB"]).ok();
        server.stop();
    }
}

#[test]
fn transfers_refuse_too_much_and_too_little_data() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    let url = server.url(1);
    let large = scratch.file("large.bin", &noise(13, (1 << 20) + 1));
    let small = scratch.file("small.bin", &noise(14, 1000));
    let write =
        |args: &[&str], input: &[u8]| scratch.run_with([&["write", &url], args].concat(), input);
    write(&["--input", &large], b"")
        .fails_in_a_line(1, &["room for 1 MiB", "1 MiB (1048577 bytes)", "nothing was written"]);
    assert!(
        scratch.run(["read", &url]).ok().stdout == vec![0; 1 << 20],
        "a refused write changed the disk"
    );
    write(&["--input", &small, "--length", "1001"], b"")
        .fails_in_a_line(2, &["has only 1000 bytes", "1001"]);
    write(&["--length", "10"], b"abc").fails_in_a_line(1, &["after 3 bytes of 10", "ended early"]);
    write(&["--offset", "1048570"], b"0123456789")
        .fails_in_a_line(1, &["longer", "the first 6 bytes are durable"]);
    assert_eq!(scratch.run(["read", &url, "--offset", "1048570"]).ok().stdout, b"012345");
    write(&["--offset", "2MiB"], b"x").fails_in_a_line(2, &["--offset 2 MiB", "1 MiB"]);
    let read = |args: &[&str]| scratch.run([&["read", &url], args].concat());
    read(&["--offset", "2MiB"]).fails_in_a_line(2, &["beyond the end", "1 MiB"]);
    read(&["--offset", "1KiB", "--length", "1MiB"])
        .fails_in_a_line(2, &["has 1023 KiB", "from byte 1024 on"]);
    assert_eq!(read(&["--offset", "1MiB"]).ok().stdout, b"");
    server.stop();
}

#[test]
fn unknown_namespaces_and_subsystems_are_reported() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB", "mem:1MiB"]);
    scratch.run(["read", &server.url(9)]).fails_in_a_line(1, &["no namespace 9", "1, 2"]);
    scratch.run(["id", &server.url(9)]).fails_in_a_line(1, &["no namespace 9", "1, 2"]);
    scratch.run(["read", &server.subsystem_url()]).fails_in_a_line(2, &["several", "?ns=1"]);
    let other = format!("nvme+tcp://{}/nqn.2026-11.org.example:other", server.address);
    scratch.run(["id", &other]).fails_in_a_line(1, &["no such subsystem", "farblock discover"]);
    server.stop();
}

#[test]
fn a_read_only_disk_with_an_allow_list_refuses_other_hosts_and_writes() {
    let scratch = Scratch::new();
    let host = "nqn.2026-11.org.example:me";
    let disk = scratch.file("disk.img", &noise(15, 1 << 20));
    let server = scratch.serve(["--allow-host", host, "--read-only", &disk]);
    scratch
        .run(["id", &server.subsystem_url()])
        .fails_in_a_line(1, &["does not allow this host", "(this host is nqn.", "--allow-host"]);
    let url = format!("{}&hostnqn={host}", server.url(1));
    let id = scratch.run(["id", &url, "--json"]).ok().json();
    assert_eq!(id["namespaces"][0]["read_only"], true);
    scratch.run_with(["write", &url], b"x").fails_in_a_line(1, &["read-only"]);
    assert!(scratch.run(["read", &url]).ok().stdout == read(&disk));
    server.stop();
}

#[test]
fn transfers_work_with_every_combination_of_digests() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:4MiB"]);
    let data = noise(16, 3 << 20);
    for digests in [
        &[] as &[&str],
        &["--header-digest"],
        &["--data-digest"],
        &["--header-digest", "--data-digest"],
    ] {
        let with = |command: &str| [&[command, &server.url(1)], digests].concat().join(" ");
        let args = |command: &str| -> Vec<String> {
            with(command).split(' ').map(str::to_owned).collect()
        };
        scratch.run_with(args("write"), &data).ok();
        let mut wanted = args("read");
        wanted.extend(["--length".to_owned(), "3MiB".to_owned()]);
        assert!(scratch.run(wanted).ok().stdout == data, "{digests:?}");
    }
    server.stop();
}

#[test]
fn read_reports_that_its_output_was_closed() {
    let scratch = Scratch::new();
    let server = scratch.serve(["null:1GiB"]);
    let mut child = scratch.command(["read", &server.url(1)]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4096]).unwrap();
    drop(stdout);
    let output = support::wait(child);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the standard output was closed by its reader"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    server.stop();
}

#[test]
fn transfers_work_with_slow_pipes() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:4MiB"]);
    let mut command = scratch.command(["write", &server.url(1)]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let data = noise(17, 10_000);
    for part in data.chunks(1000) {
        stdin.write_all(part).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(stdin);
    assert!(support::wait(child).status.success());

    let mut child = scratch.command(["read", &server.url(1)]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert!(support::wait(child).status.success());
    assert!(all.len() == 4 << 20 && all.starts_with(&data));
    server.stop();
}

#[test]
fn serve_prints_the_commands_that_connect_to_it() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let server = scratch.serve([&disk]);
    let port = server.address.rsplit(':').next().unwrap();
    for part in [
        &format!("Subsystem {}", server.nqn),
        "any host may connect",
        "1 MiB",
        &format!("farblock discover {}", server.address),
        &format!("farblock id {}", server.subsystem_url()),
        &format!("nvme discover --transport=tcp --traddr=127.0.0.1 --trsvcid={port}"),
        &format!(
            "nvme connect --transport=tcp --traddr=127.0.0.1 --trsvcid={port} --nqn={}",
            server.nqn
        ),
    ] {
        assert!(server.said.contains(part), "{part:?} is missing in:\n{}", server.said);
    }
    let nqn = server.nqn.clone();
    server.stop();
    let json = scratch.serve([&disk, "--json"]);
    let said: serde_json::Value = serde_json::from_str(&json.said).unwrap();
    assert_eq!(said["subsystems"][0]["nqn"], nqn, "the same disk has another name");
    assert_eq!(said["pid"], json.id);
    let url = said["subsystems"][0]["namespaces"][0]["url"].as_str().unwrap();
    scratch.run(["id", url]).ok();
    json.stop();
    let quiet = scratch.serve([&disk, "--quiet"]);
    assert_eq!(quiet.said, format!("listening on {}\n", quiet.address));
    quiet.stop();
}

#[test]
fn a_target_serves_at_each_of_several_listeners() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--listen", "[::1]:0", "mem:1MiB", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&server.said).unwrap();
    let listening = said["listening"].as_array().unwrap();
    assert_eq!(listening.len(), 2);
    for address in listening {
        scratch.run(["discover", address.as_str().unwrap()]).ok();
    }
    server.stop();
}

/// Uses its own address, because the ports are fixed.
#[test]
fn discover_tries_the_default_ports() {
    const ADDRESS: &str = "127.0.0.77";
    if std::net::TcpListener::bind((ADDRESS, 4420)).is_err() {
        support::cannot_check("127.0.0.77:4420 cannot be used here");
    }
    let scratch = Scratch::new();
    scratch
        .run(["discover", ADDRESS])
        .fails_in_a_line(1, &["refused", "ports 8009 and 4420 were tried"]);
    let command = scratch.command(["serve", "mem:1MiB", "--listen", ADDRESS]);
    let server = support::Server::start(command);
    assert_eq!(server.address, "127.0.0.77:4420");
    assert!(scratch.run(["discover", ADDRESS]).ok().out().contains(&server.nqn));
    let discovery = format!("nvme+tcp://{ADDRESS}/nqn.2014-08.org.nvmexpress.discovery");
    let id = scratch.run(["id", &discovery, "--json"]).ok().json();
    assert_eq!(id["controller"]["discovery"], true);
    scratch.run(["id", &discovery]).ok();
    server.stop();
}

#[test]
fn no_color_disables_colours_in_errors() {
    let scratch = Scratch::new();
    let mut command = scratch.command(["id", "nvme+tcp://127.0.0.1:1/n"]);
    command.env("NO_COLOR", "1");
    let outcome = finish(command, b"");
    assert!(!outcome.stderr.contains('\x1b'), "{}", outcome.stderr);
}
