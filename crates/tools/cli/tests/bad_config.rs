//! Checks that the error for each configuration mistake names the file, the line and the key.

mod support;

use support::Scratch;

const GOOD: &str = r#"listeners = ["127.0.0.1:0"]

[[subsystems]]
nqn = "nqn.2026-11.org.example:disks"
allow_any_host = true

[[subsystems.namespaces]]
path = "mem:1MiB"
"#;

/// A mistake: a text of the valid configuration, its replacement, and parts of the expected error.
type Mistake = (&'static str, &'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    ("listeners = ", "listners = ", &[":1: listners: there is no key", "`listeners`"]),
    ("path = ", "pth = ", &[":8: subsystems[0].namespaces[0].pth: there is no key", "`path`"]),
    ("nqn = ", "# nqn = ", &[":3: subsystems[0]", "the key `nqn` is missing"]),
    ("path = ", "# path = ", &[":7: subsystems[0].namespaces[0]", "the key `path` is missing"]),
    (
        "true",
        "\"yes\"",
        &[":5: subsystems[0].allow_any_host: this is the text \"yes\"", "allow_any_host = true"],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nnsid = 99999999999999999999\n",
        &[":9: subsystems[0].namespaces[0].nsid: ", "a whole number from 1 to"],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nblock_size = \"4k\"\n",
        &[":9: subsystems[0].namespaces[0].block_size: this is the text \"4k\": write 512 or 4096"],
    ),
    ("\"mem:1MiB\"", "7", &[":8: subsystems[0].namespaces[0].path: ", "path = \"disk.img\""]),
    ("\"mem:1MiB\"", "\"mem:1MB\"", &[":8: subsystems[0].namespaces[0].path: ", "1MiB"]),
    (
        "\"mem:1MiB\"\n",
        "\"a.img\"\n[[subsystems.namespaces]]\npath = \"./a.img\"\n",
        &[":10: subsystems[0].namespaces[1].path: ", "a.img is named twice"],
    ),
    ("\"mem:1MiB\"", "\"none.img\"", &[":8: subsystems[0].namespaces[0].path: ", "does not exist"]),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nnsid = 0\n",
        &[":9: subsystems[0].namespaces[0].nsid: use 1"],
    ),
    ("\"mem:1MiB\"\n", "\"mem:1MiB\"\nnsid = -1\n", &[":9: subsystems[0].namespaces[0].nsid: "]),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nlimits = { iops = -3 }\n",
        &[":9: subsystems[0].namespaces[0].limits.iops: this is the number -3", "of at least 1"],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nana_group = -1\n",
        &[":9: subsystems[0].namespaces[0].ana_group: ", "from 1 to 128"],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nuuid = \"x\"\n",
        &[":9: subsystems[0].namespaces[0].uuid: this is not a UUID", "uuid = \""],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nuuid = \"00000000-0000-0000-0000-000000000000\"\n",
        &[":9: subsystems[0].namespaces[0].uuid: zeroes are not a valid UUID"],
    ),
    ("0\"]", "4420\", \"127.0.0.1\"]", &[":1: listeners[1]: it is listed twice"]),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nblock_size = 520\n",
        &[":9: subsystems[0].namespaces[0].block_size: 520", "512 or 4096"],
    ),
    (
        "\"mem:1MiB\"\n",
        "\"mem:1MiB\"\nnsid = 2\n[[subsystems.namespaces]]\npath = \"null:512\"\nnsid = 2\n",
        &[":12: subsystems[0].namespaces[1].nsid: ", "2 already"],
    ),
    ("nqn.2026-11.org.example:disks", "nqn.disks", &[":4: subsystems[0].nqn: ", "for example"]),
    (
        "nqn.2026-11.org.example:disks",
        "nqn.2014-08.org.nvmexpress.discovery",
        &[":4: subsystems[0].nqn: ", "discovery"],
    ),
    ("true", "false", &[":3: subsystems[0].allowed_hosts: no host could connect"]),
    (
        "true",
        "true\nallowed_hosts = [\"nqn.2026-11.org.example:me\"]",
        &[":5: subsystems[0].allow_any_host: ", "remove them"],
    ),
    (
        "allow_any_host = true",
        "allowed_hosts = [\"nqn.me\"]",
        &[":5: subsystems[0].allowed_hosts[0]: ", "for example"],
    ),
    ("true", "true\nserial = \"\"", &[":6: subsystems[0].serial: ", "1 to 20"]),
    ("true", "true\nmodel = \"\u{e4}\"", &[":6: subsystems[0].model: ", "ASCII"]),
    ("\"127.0.0.1:0\"", "\"127.0.0.1:http\"", &[":1: listeners[0]: ", "listeners = ["]),
    ("[\"127.0.0.1:0\"]", "[]", &[":1: listeners: the list is empty"]),
    ("[\"127.0.0.1:0\"]", "\"127.0.0.1:0\"", &[":1: listeners: ", "listeners = ["]),
    ("listeners", "engine = \"fast\"\nlisteners", &[":1: engine: ", "auto, uring or portable"]),
    ("listeners", "cores = \"2-1\"\nlisteners", &[":1: cores: ", "backwards", "cores = \"0-3,6\""]),
    ("listeners", "cores = [1]\nlisteners", &[":1: cores: ", "cores = \"0-3,6\""]),
    (
        "listeners",
        "referrals = [\"host\"]\nlisteners",
        &[":1: referrals[0]: ", "not an IP address"],
    ),
    ("= [\"127.0.0.1:0\"]", "= [", &[":4:1: nqn: this is not TOML", "comma"]),
    ("nqn = ", "nqn ", &[":4:", "this is not TOML"]),
    (
        "listeners = ",
        "spin = \"fast\"\nlisteners = ",
        &[":1: spin: \"fast\" is not one of efficient, balanced, latency, always"],
    ),
    (
        "listeners = ",
        "spin = \"latency\"\npoll = true\nlisteners = ",
        &[":1: spin: poll = true means spin = \"always\"", "leave one of the two out"],
    ),
    ("true", "true\nallow_any_host = true", &[":6:", "allow_any_host", "duplicate key"]),
];

#[test]
fn every_configuration_error_names_file_line_and_key() {
    let scratch = Scratch::new();
    for (from, to, parts) in MISTAKES {
        assert!(GOOD.contains(from), "{from}");
        let config = scratch.file("farblock.toml", GOOD.replacen(from, to, 1).as_bytes());
        let outcome = scratch.run(["serve", "--config", &config]);
        eprint!("{}", outcome.stderr);
        let code = if parts.contains(&"does not exist") { 1 } else { 2 };
        let outcome = outcome.fails_in_a_line(code, parts);
        for name in ["u32", "i64", "i128", "invalid type", "sequence", "struct"] {
            // Remove the key `eui64`, whose name contains `i64`, a type of Rust.
            let said = outcome.stderr.replace("eui64", "");
            assert!(!said.contains(name), "{said}");
        }
        assert!(outcome.stderr.contains("farblock.toml:"), "{}", outcome.stderr);
    }
}

#[test]
fn serve_refuses_files_that_are_no_configuration() {
    let scratch = Scratch::new();
    let load = |path: &str| scratch.run(["serve", "--config", path]);
    load("missing.toml").fails_in_a_line(1, &["missing.toml", "name a file that exists"]);
    load(&scratch.text("")).fails_in_a_line(1, &["cannot read the configuration"]);
    load(&scratch.file("empty.toml", b"")).fails_in_a_line(2, &["empty.toml:1: subsystems: "]);
    load(&scratch.file("binary.toml", b"a = 1\n\xff")).fails_in_a_line(2, &["binary.toml:2: "]);
    load(&scratch.disk("huge.toml", 1 << 30)).fails_in_a_line(1, &["huge.toml", "another file"]);
    let twice = GOOD.to_owned() + GOOD.split_once("\n\n").unwrap().1;
    load(&scratch.file("twice.toml", twice.as_bytes()))
        .fails_in_a_line(2, &["twice.toml:10: subsystems[1].nqn: ", "already"]);
}

#[test]
fn a_valid_configuration_is_served() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    assert!(disk.ends_with("disk.img"));
    // The path starts at the file's folder, not at the working directory.
    std::fs::create_dir(scratch.path("etc")).unwrap();
    let text = GOOD.replace("mem:1MiB", "../disk.img");
    let config = scratch.file("etc/farblock.toml", text.as_bytes());
    let server = support::Server::start(scratch.command(["serve", "--config", &config]));
    assert!(server.said.contains("any host may connect"), "{}", server.said);
    assert!(server.said.contains("disk.img (1 MiB"), "{}", server.said);
    let id = scratch.run(["id", &server.subsystem_url(), "--json"]).ok().json();
    assert_eq!(id["namespaces"][0]["bytes"], 1 << 20);
    server.stop();
}

/// Checks that the command line overrides the file, and that keys may have hyphens.
#[test]
fn the_listen_option_overrides_the_configuration() {
    let scratch = Scratch::new();
    let text = GOOD.replace("127.0.0.1:0", "192.0.2.1:1").replace("allow_any", "allow-any");
    assert!(text.contains("192.0.2.1:1") && text.contains("allow-any_host"));
    let config = scratch.file("farblock.toml", text.replace("any_host", "any-host").as_bytes());
    let command = ["serve", "--config", &config, "--listen", "127.0.0.1:0"];
    let server = support::Server::start(scratch.command(command));
    scratch.run(["id", &server.subsystem_url()]).ok();
    server.stop();
}

#[test]
fn serve_warns_of_one_serial_number_in_two_subsystems() {
    let scratch = Scratch::new();
    let subsystem = |name: &str, serial: &str| {
        format!(
            "[[subsystems]]\nnqn = \"nqn.2026-11.s:{name}\"\nserial = \"{serial}\"\n\
             allow-any-host = true\nnamespaces = [{{ path = \"mem:1MiB\" }}]\n"
        )
    };
    for (other, count) in [("SN1", 1), ("SN2", 0)] {
        let text =
            ["listeners = [\"127.0.0.1:0\"]\n", &subsystem("a", "SN1"), &subsystem("b", other)];
        let config = scratch.file("farblock.toml", text.concat().as_bytes());
        let server = support::Server::start(scratch.command(["serve", "--config", &config]));
        let said = server.stop().stderr;
        assert_eq!(said.matches("both have the serial number SN1").count(), count, "{said}");
        let checked = scratch.run(["serve", "--check", &config]).ok();
        let said = &checked.stderr;
        assert_eq!(said.matches("both have the serial number SN1").count(), count, "{said}");
        assert!(checked.out().contains("is valid: 2 subsystems"), "{}", checked.out());
    }
}

#[test]
#[cfg(unix)]
fn a_check_refuses_two_names_of_one_file() {
    let scratch = Scratch::new();
    scratch.disk("a.img", 1 << 20);
    std::fs::hard_link(scratch.path("a.img"), scratch.path("b.img")).unwrap();
    let both = "\"a.img\"\n[[subsystems.namespaces]]\npath = \"b.img\"";
    let config = scratch.file("farblock.toml", GOOD.replace("\"mem:1MiB\"", both).as_bytes());
    let parts = [":10: subsystems[0].namespaces[1].path: ", "b.img is the same file as", "a.img"];
    scratch.run(["serve", "--check", &config]).fails_in_a_line(2, &parts);
}

#[test]
fn the_example_configuration_is_served() {
    let scratch = Scratch::new();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/farblock.toml");
    let text = std::fs::read_to_string(example).unwrap();
    // Use a free port, because tests run in parallel.
    let text = text.replace("127.0.0.1:4420\"]", "127.0.0.1:0\"]");
    let config = scratch.file("farblock.toml", text.as_bytes());
    let server = support::Server::start(scratch.command(["serve", "--config", &config]));
    let found = scratch.run(["discover", &server.address, "--json"]).ok().json();
    let kinds: Vec<&str> = found["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"referral"), "{kinds:?}");
    // The first subsystem does not allow this host.
    let scratch_url = format!("nvme+tcp://{}/nqn.2026-11.org.example:scratch", server.address);
    let id = scratch.run(["id", &scratch_url, "--json"]).ok().json();
    assert_eq!(id["namespaces"][0]["bytes"], 1_u64 << 40);
    assert_eq!(id["namespaces"][1]["bytes"], 32 << 20);
    let disks_url = format!("nvme+tcp://{}/nqn.2026-11.org.example:disks", server.address);
    scratch
        .run(["id", &disks_url])
        .fails_in_a_line(1, &["does not allow this host", "allowed_hosts"]);
    let hostnqn = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef";
    let allowed = format!("{disks_url}?hostnqn={hostnqn}");
    let id = scratch.run(["id", &allowed, "--json"]).ok().json();
    assert_eq!(id["controller"]["serial"], "FB0001");
    assert_eq!(id["namespaces"][0]["block_size"], 4096);
    server.stop();
}
