//! Tests that convert configurations of other targets, and serve the results.
#![cfg(unix)]

mod support;

use std::net::Ipv4Addr;
use support::{Reserved, Scratch, Server};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-0000-4000-8000-000000000001";
const LOCKED: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-0000-4000-8000-000000000002";

/// Imports a configuration and serves it. Returns the target's state and the importer's messages.
fn imported(scratch: &Scratch, json: &str) -> (serde_json::Value, String) {
    let reserved = Reserved::at(Ipv4Addr::LOCALHOST);
    let port = reserved.address.port();
    scratch.disk("disk.img", 1 << 20);
    let json = json.replace("PORT", &port.to_string()).replace("FOLDER", &scratch.text(""));
    std::fs::write(scratch.path("other.json"), json).unwrap();
    let made = scratch.run(["config", "import", "other.json"]).ok();
    std::fs::write(scratch.path("farblock.toml"), made.out()).unwrap();
    scratch.run(["serve", "--check", "farblock.toml"]).ok();
    assert!(made.out().contains(&format!("listeners = [\"127.0.0.1:{port}\"]")), "{}", made.out());
    let server = scratch.serve(["--config", "farblock.toml"]);
    let document = scratch.run(["config", "show"]).ok().json();
    let subsystem = document["subsystems"].as_object().unwrap().keys().next().unwrap();
    let url = format!("nvme+tcp://{}/{subsystem}?hostnqn={LOCKED}", server.address);
    scratch.run(["id", &url]).fails(1, &["does not allow this host"]);
    server.stop();
    for note in made.stderr.lines() {
        let sentence = note.strip_prefix("not imported: ").expect("each line is such a note");
        assert!(made.out().contains(&format!("# Not imported: {sentence}")), "{note}");
    }
    (document, made.stderr)
}

#[test]
fn a_file_in_the_format_of_nvmetcli_is_imported() {
    let scratch = Scratch::new();
    let (document, said) = imported(&scratch, include_str!("imports/nvmet.json"));
    let subsystem = &document["subsystems"]["nqn.2026-11.org.example:nvmet"];
    assert_eq!(subsystem["serial"], "0123456789abcdef0123", "{document}");
    assert_eq!(subsystem["model"], "Linux");
    let hosts: Vec<_> = subsystem["hosts"].as_object().unwrap().keys().collect();
    assert_eq!(hosts, [HOST]);
    let namespaces = subsystem["namespaces"].as_object().unwrap();
    let namespace = &namespaces["5"];
    assert_eq!((namespaces.len(), &namespace["block_size"]), (1, &4096.into()));
    assert_eq!(namespace["uuid"], "22222222-0000-4000-8000-000000000001");
    assert_eq!(namespace["nguid"], namespace["uuid"]);
    assert_eq!(namespace["ana_group"], 2);
    let listener = document["listeners"].as_object().unwrap().values().next().unwrap();
    assert_eq!(listener["ana_groups"]["2"], "non-optimized");
    assert!(document["referrals"]["192.0.2.9:8009"].is_object(), "{document}");
    let expected = ["namespace 6", "is not enabled", "port 2", "fc", LOCKED, "has a key"];
    expected.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    assert!(!said.contains("DHHC-1") && said.lines().count() == 3, "{said}");
}

/// Only checks the imported configuration, because serving it would need an RDMA device.
#[test]
fn an_rdma_listener_is_imported() {
    let scratch = Scratch::new();
    scratch.disk("disk.img", 1 << 20);
    let json = include_str!("imports/nvmet.json").replace("\"fc\"", "\"rdma\"");
    let json = json.replace("PORT", "4421").replace("FOLDER", &scratch.text(""));
    std::fs::write(scratch.path("other.json"), json).unwrap();
    let made = scratch.run(["config", "import", "other.json"]).ok();
    assert!(made.out().contains("\"rdma:192.0.2.1:4420\""), "{}", made.out());
    std::fs::write(scratch.path("farblock.toml"), made.out()).unwrap();
    let checked = scratch.run(["serve", "--check", "farblock.toml"]).ok();
    assert!(checked.out().contains("2 listeners"), "{}", checked.out());
}

/// Imports real output of `nvmetcli save` 0.8 on Linux 6.12. Only the file's path and the port were
/// changed.
#[test]
fn a_file_saved_by_nvmetcli_0_8_is_imported() {
    let scratch = Scratch::new();
    let (document, said) = imported(&scratch, include_str!("imports/nvmetcli-0.8.json"));
    let subsystem = &document["subsystems"]["nqn.2026-11.org.example:real"];
    assert_eq!(subsystem["serial"], "feedfacecafe0001", "{document}");
    let hosts: Vec<_> = subsystem["hosts"].as_object().unwrap().keys().collect();
    assert_eq!(hosts, [HOST]);
    let namespaces = subsystem["namespaces"].as_object().unwrap();
    let namespace = &namespaces["5"];
    assert_eq!((namespaces.len(), &namespace["block_size"]), (1, &4096.into()));
    assert_eq!(namespace["uuid"], "ac854b4f-5a74-4937-874d-d22440b60b05");
    assert_eq!(namespace["ana_group"], 2);
    let listener = document["listeners"].as_object().unwrap().values().next().unwrap();
    assert_eq!(listener["ana_groups"]["2"], "non-optimized");
    assert!(document["referrals"]["192.0.2.9:8009"].is_object(), "{document}");
    assert!(said.contains("namespace 6") && said.contains("is not enabled"), "{said}");
}

#[test]
fn a_file_in_the_format_of_spdk_is_imported() {
    let scratch = Scratch::new();
    let (document, said) = imported(&scratch, include_str!("imports/spdk.json"));
    let subsystem = &document["subsystems"]["nqn.2016-06.io.spdk:cnode1"];
    assert_eq!(subsystem["serial"], "SPDK00000000000001", "{document}");
    let hosts: Vec<_> = subsystem["hosts"].as_object().unwrap().keys().collect();
    assert_eq!(hosts, [HOST]);
    let namespaces = subsystem["namespaces"].as_object().unwrap();
    assert_eq!(namespaces.len(), 2);
    let (memory, file) = (&namespaces["1"], &namespaces["3"]);
    assert_eq!((&memory["path"], &memory["block_size"]), (&"mem:8MiB".into(), &4096.into()));
    assert_eq!(memory["limits"], serde_json::json!({ "iops": 20_000, "bytes": 104_857_600 }));
    assert_eq!(memory["uuid"], "33333333-0000-4000-8000-000000000001");
    assert_eq!((&file["read_only"], &file["ana_group"]), (&true.into(), &2.into()));
    assert_eq!(file["visible_to"], serde_json::json!([HOST]));
    let expected = ["bdev_nvme_attach_controller (Nvme0)", "bdev Nvme0n1", LOCKED, "has a key"];
    expected.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    assert_eq!(said.lines().count(), 3, "{said}");
}

/// Imports real output of SPDK 26.05's `save_config`. Only the folder of the files was changed.
#[test]
fn a_file_saved_by_spdk_26_05_is_imported() {
    let scratch = Scratch::new();
    let _ = scratch.keys(["host.key", "ctrlr.key"], &[]);
    let _ = scratch.keys(["tls.key"], &["--tls"]);
    ["disk.img", "ro.img", "uring.img"].iter().for_each(|name| drop(scratch.disk(name, 8 << 20)));
    let reserved = [(); 3].map(|()| Reserved::at(Ipv4Addr::LOCALHOST));
    let ports = reserved.each_ref().map(|one| one.address.port().to_string());
    let saved = include_str!("imports/spdk-26.05.json").replace("FOLDER/", &scratch.text(""));
    let saved = ["15420", "15421", "15422"].iter().zip(&ports).fold(saved, |saved, (old, new)| {
        saved.replace(&format!("\"{old}\""), &format!("\"{new}\""))
    });
    scratch.file("saved.json", saved.as_bytes());
    let made = scratch.run(["config", "import", "saved.json"]).ok();
    scratch.file("farblock.toml", &made.stdout);
    scratch.run(["serve", "--check", "farblock.toml"]).ok();
    let said = &made.stderr;
    let expected = ["Raid1", "spdk:empty has no namespace", "did not offer", "TLS"];
    expected.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    assert!(!said.contains("keyring_file_add_key") && !said.contains("has a key"), "{said}");
    let config = scratch.text("farblock.toml");
    let server = Server::start(scratch.command(["serve", "--config", &config]));
    let document = scratch.run(["config", "show"]).ok().json();
    let one = &document["subsystems"]["nqn.2016-06.io.spdk:cnode1"]["namespaces"];
    assert_eq!(one["1"]["limits"], serde_json::json!({ "iops": 20_000, "bytes": 104_857_600 }));
    let halves = serde_json::json!({ "read_bytes": 52_428_800, "write_bytes": 26_214_400 });
    assert_eq!((&one["5"]["limits"], &one["5"]["ana_group"]), (&halves, &2.into()), "{document}");
    assert_eq!(one["3"]["path"], "stripe:64KiB,mem:4MiB,mem:4MiB");
    let id = |subsystem: &str, port: &str, host: u32, more: &[&str]| {
        let host = format!("nqn.2014-08.org.nvmexpress:uuid:11111111-0000-4000-8000-{host:012}");
        let (path, rest) = ("nqn.2016-06.io.spdk", format!("?hostnqn={host}"));
        let url = format!("nvme+tcp://127.0.0.1:{port}/{path}:{subsystem}{rest}");
        scratch.run(["id", &url].iter().chain(more))
    };
    id("cnode1", &ports[1], 9, &[]).ok();
    id("cnode2", &ports[0], 1, &[]).ok();
    id("cnode2", &ports[0], 9, &[]).fails(1, &["does not allow this host"]);
    id("cnode2", &ports[0], 2, &[]).fails(1, &["secret"]);
    let keys = ["--dhchap-secret", "host.key", "--dhchap-ctrl-secret", "ctrlr.key"];
    id("cnode2", &ports[0], 2, &keys).ok();
    id("cnode3", &ports[0], 2, &keys[..2]).ok();
    id("cnode2", &ports[2], 3, &["--tls-key", "tls.key"]).ok();
    server.stop();
}

#[test]
fn an_import_keeps_the_tls_requirement() {
    let nvmet = include_str!("imports/nvmet.json");
    let spdk = include_str!("imports/spdk.json");
    let treq = "\"traddr\": \"127.0.0.1\", \"treq\": ";
    let of_port =
        |after: &str| nvmet.replace(&format!("{treq}\"not specified\""), &format!("{treq}{after}"));
    for (json, is_required) in [
        (of_port("\"required\""), true),
        (of_port("\"not specified\", \"tsas\": \"tls1.3\""), true),
        (of_port("\"not required\", \"tsas\": \"tls1.3\""), false),
        (spdk.replace("\"secure_channel\": false", "\"secure_channel\": true"), true),
    ] {
        let scratch = Scratch::new();
        let json = json.replace("PORT", "4420").replace("FOLDER", &scratch.text(""));
        std::fs::write(scratch.path("other.json"), json).unwrap();
        let made = scratch.run(["config", "import", "other.json"]).ok();
        std::fs::write(scratch.path("farblock.toml"), made.out()).unwrap();
        scratch.run(["serve", "--check", "farblock.toml"]).ok();
        let listener = "listeners = [{ address = \"127.0.0.1:4420\", tls = \"required\" }]";
        assert_eq!(made.out().contains(listener), is_required, "{}", made.out());
        assert!(made.stderr.contains("tls_key"), "{}", made.stderr);
    }
}

#[test]
fn an_import_names_listeners_that_did_not_offer_a_subsystem() {
    let scratch = Scratch::new();
    let json = include_str!("imports/spdk.json").replace("PORT", "4420").replace("FOLDER", "/x");
    let another = r#"{"method": "nvmf_create_subsystem", "params": {"nqn": "nqn.2016-06.io.spdk:b",
        "allow_any_host": true}}, {"method": "nvmf_subsystem_add_listener""#;
    let json = json.replacen(r#"{"method": "nvmf_subsystem_add_listener""#, another, 1);
    std::fs::write(scratch.path("other.json"), json).unwrap();
    let made = scratch.run(["config", "import", "other.json"]).ok().out();
    assert!(made.contains("SPDK did not offer nqn.2016-06.io.spdk:b at 127.0.0.1:4420"), "{made}");
    assert!(!made.contains("did not offer nqn.2016-06.io.spdk:cnode1"), "{made}");
}

#[test]
fn an_import_refuses_other_files() {
    let scratch = Scratch::new();
    let import = |text: &str| {
        std::fs::write(scratch.path("other.json"), text).unwrap();
        scratch.run(["config", "import", "other.json"])
    };
    import("{").fails(2, &["other.json", "this is not JSON"]);
    for text in ["[]", "{}", "7", r#"{"subsystems": 7, "ports": []}"#] {
        import(text).fails(2, &["neither a file of nvmetcli"]);
    }
    let nothing = r#"{"subsystems": [{"subsystem": "nvmf", "config": []}]}"#;
    import(nothing).fails(2, &["listeners: no host could connect"]);
    import(r#"{"subsystems": [{"nqn": 7}, 8], "ports": [9, {"addr": 1}]}"#)
        .fails(2, &["listeners"]);
    scratch.run(["config", "import", "none.json"]).fails(1, &["none.json"]);
}
