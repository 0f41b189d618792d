use super::*;
use farblock_admin::trial;
use farblock_state::{Demand, Host, Limits, Listener, Namespace, Subsystem, Tls};
use farblock_target::Target;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.org.farblock:one";
const OTHER: &str = "nqn.2026-11.org.farblock:other";

struct Fixture {
    rpc: SpdkRpc,
    _target: Target,
}

impl Fixture {
    fn new() -> Self {
        let bdevs = Bdevs::new();
        let (target, steering) = trial::start(bdevs.opening(Arc::new(trial::Opener)));
        Self { rpc: SpdkRpc::new(steering, bdevs, Arc::new(trial::Opener)), _target: target }
    }

    fn answer(&self, method: &str, params: &Value) -> Value {
        let request = json!({ "method": method, "id": 1, "params": params }).to_string();
        let answer = self.rpc.answer(request.as_bytes()).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// Calls a method that must succeed.
    fn ask(&self, method: &str, params: &Value) -> Value {
        let mut answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    fn subsystems(&self) {
        for nqn in [NQN, OTHER] {
            self.ask("nvmf_create_subsystem", &json!({ "nqn": nqn }));
        }
    }

    /// Creates a bdev over a new file.
    fn file(&self, folder: &Path, name: &str) {
        let path = folder.join(name);
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let params = json!({ "name": name, "filename": path, "block_size": 512 });
        self.ask("bdev_aio_create", &params);
    }

    /// The parameters of the saved calls of this method.
    fn saved(&self, method: &str) -> Vec<Value> {
        let parts = ["keyring", "bdev", "nvmf"].map(|name| json!({ "name": name }));
        let parts = parts.map(|part| self.ask("framework_get_config", &part));
        let calls = parts.iter().flat_map(|part| part.as_array().unwrap());
        let calls = calls.filter(|call| call["method"] == method);
        calls.map(|call| call["params"].clone()).collect()
    }

    /// Changes the document through another interface.
    fn edit(&self, edit: impl FnOnce(&mut Document)) {
        let edited = |document: &Document| {
            let mut document = document.clone();
            edit(&mut document);
            Ok(document)
        };
        self.rpc.steering.change(None, &Reread::Nothing, edited).unwrap();
    }

    fn document(&self) -> Document {
        self.rpc.steering.document().0
    }

    /// Adds a namespace through another interface.
    fn add(&self, nqn: &str, nsid: u32, namespace: Namespace) -> Result<(), String> {
        let edit = |document: &Document| {
            let mut document = document.clone();
            let subsystem = document.subsystems.get_mut(nqn).unwrap();
            subsystem.namespaces.insert(nsid, namespace);
            Ok(document)
        };
        let done = self.rpc.steering.change(None, &Reread::Nothing, edit);
        done.map(drop).map_err(|refused| refused.to_string())
    }
}

/// A call during which the document changes through another interface.
fn late(rpc: &SpdkRpc, _: &mut Table, _: Params) -> Answer {
    let with = |document: &Document, nqn: &str| {
        let mut document = document.clone();
        document.subsystems.insert(nqn.to_owned(), Subsystem::default());
        document
    };
    let seen = rpc.view().document;
    let is_second = seen.subsystems.contains_key(OTHER);
    if !is_second {
        let edit = |document: &Document| Ok(with(document, OTHER));
        rpc.steering.change(None, &Reread::Nothing, edit).unwrap();
    }
    let changed = rpc.change(|document| *document = with(&seen, NQN));
    changed.map_err(refused(RpcError::internal()))?;
    Ok(json!(is_second))
}

#[test]
fn a_call_is_repeated_after_a_concurrent_change() {
    let fixture = Fixture::new();
    let text = br#"{"method": "late", "id": 1}"#;
    let answer = message::answer(text, &mut |_, params| fixture.rpc.carry_out(late, &params));
    let answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
    assert_eq!(answer["result"], true);
    let names: Vec<_> = fixture.document().subsystems.into_keys().collect();
    assert_eq!(names, [NQN, OTHER]);
}

#[test]
fn a_host_listed_by_another_client_is_listed_once() {
    let fixture = Fixture::new();
    let host = json!({ "nqn": NQN, "host": "nqn.2026-11.h:a" });
    fixture.ask("nvmf_create_subsystem", &json!({ "nqn": NQN, "allow_any_host": true }));
    fixture.ask("nvmf_subsystem_add_host", &host);
    let list = |hosts: &[&str]| {
        let edit = |document: &Document| {
            let mut document = document.clone();
            let subsystem = document.subsystems.get_mut(NQN).unwrap();
            subsystem.allow_any_host = false;
            let hosts = hosts.iter().map(|name| ((*name).to_owned(), Default::default()));
            subsystem.hosts = hosts.collect();
            Ok(document)
        };
        fixture.rpc.steering.change(None, &Reread::Nothing, edit).unwrap();
        let seen = fixture.ask("nvmf_get_subsystems", &json!({ "nqn": NQN }));
        seen[0]["hosts"].clone()
    };
    assert_eq!(list(&["nqn.2026-11.h:a"]), json!([{ "nqn": "nqn.2026-11.h:a" }]));
    assert_eq!(list(&[]), json!([]));
}

#[test]
fn two_ram_disks_of_one_size_are_different_bdevs() {
    let fixture = Fixture::new();
    fixture.subsystems();
    for (nqn, nsid) in [(NQN, 1), (NQN, 2), (OTHER, 1)] {
        fixture.add(nqn, nsid, Namespace::new("mem:1MiB")).unwrap();
    }
    let bdevs = fixture.ask("bdev_get_bdevs", &json!({}));
    let names: Vec<_> = bdevs.as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    let expected = [(NQN, 1), (NQN, 2), (OTHER, 1)].map(|(nqn, nsid)| format!("{nqn}/{nsid}"));
    assert_eq!(names, expected);
}

#[test]
fn a_bdev_is_shared_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    for name in ["a", "b", "c"] {
        fixture.file(folder.path(), name);
    }
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } });
    fixture.ask("nvmf_subsystem_add_ns", &params);
    let shared = fixture.document().subsystems[NQN].namespaces[&1].clone();
    let refused = fixture.add(OTHER, 1, shared.clone()).unwrap_err();
    assert!(refused.contains(&format!("namespace 1 of {NQN} has the same")), "{refused}");
    let parts = json!({
        "name": "raid", "raid_level": "raid0", "strip_size_kb": 4, "base_bdevs": ["b", "c"],
    });
    fixture.ask("bdev_raid_create", &parts);
    let part = fixture.rpc.bdevs.find("b").unwrap().namespace;
    fixture.add(OTHER, 1, part).unwrap_err();
    // The namespace can still move to another subsystem.
    fixture.ask("nvmf_subsystem_remove_ns", &json!({ "nqn": NQN, "nsid": 1 }));
    fixture.add(OTHER, 1, shared).unwrap();
}

#[test]
fn a_bdev_whose_file_another_namespace_shares_cannot_join_a_raid() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    fixture.file(folder.path(), "a");
    fixture.file(folder.path(), "b");
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } });
    fixture.ask("nvmf_subsystem_add_ns", &params);
    let shared = fixture.document().subsystems[NQN].namespaces[&1].clone();
    fixture.add(NQN, 1, Namespace { uuid: None, ..shared }).unwrap();
    let parts = json!({
        "name": "raid", "raid_level": "raid0", "strip_size_kb": 4, "base_bdevs": ["a", "b"],
    });
    let answer = fixture.answer("bdev_raid_create", &parts);
    assert_eq!(answer["error"]["code"], -16, "{answer}");
}

#[test]
fn error_codes_match_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.file(folder.path(), "a");
    let odd = folder.path().join("odd");
    std::fs::write(&odd, [0; 1000]).unwrap();
    let create = |name: &str, path: &Path| {
        let params = json!({ "name": name, "filename": path, "block_size": 512 });
        fixture.answer("bdev_aio_create", &params)
    };
    let cases = [
        ("odd", odd, -22),
        ("again", folder.path().join("a"), -16),
        ("none", folder.path().join("none"), -2),
        ("folder", folder.path().to_owned(), -22),
    ];
    for (name, path, code) in cases {
        let answer = create(name, &path);
        assert_eq!(answer["error"]["code"], code, "{name}: {answer}");
    }
}

#[test]
fn a_rescan_updates_the_size_of_a_bdev() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    fixture.file(folder.path(), "a");
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } });
    fixture.ask("nvmf_subsystem_add_ns", &params);
    let file = std::fs::File::options().write(true).open(folder.path().join("a")).unwrap();
    file.set_len(2 << 20).unwrap();
    let name = json!({ "name": "a" });
    let blocks = || fixture.ask("bdev_get_bdevs", &name)[0]["num_blocks"].clone();
    assert_eq!(blocks(), 2048);
    assert_eq!(fixture.ask("bdev_aio_rescan", &name), true);
    assert_eq!(blocks(), 4096);
    let answer = fixture.answer("bdev_aio_rescan", &json!({ "name": "b" }));
    assert_eq!(answer["error"]["code"], -19, "{answer}");
}

#[test]
fn controller_identifiers_and_eui64_are_applied_and_saved() {
    let fixture = Fixture::new();
    let params = json!({ "nqn": NQN, "min_cntlid": 7, "max_cntlid": 9 });
    fixture.ask("nvmf_create_subsystem", &params);
    fixture.ask("bdev_null_create", &json!({ "name": "n", "block_size": 512, "num_blocks": 8 }));
    let namespace = json!({ "bdev_name": "n", "eui64": "abcdef0123456789" });
    fixture.ask("nvmf_subsystem_add_ns", &json!({ "nqn": NQN, "namespace": namespace }));
    let shown = fixture.ask("nvmf_get_subsystems", &json!({ "nqn": NQN }));
    assert_eq!(shown[0]["min_cntlid"], 7);
    assert_eq!(shown[0]["namespaces"][0]["eui64"], "ABCDEF0123456789");
    assert_eq!(fixture.saved("nvmf_create_subsystem")[0]["max_cntlid"], 9);
    assert_eq!(fixture.saved("nvmf_subsystem_add_ns")[0]["namespace"]["eui64"], "ABCDEF0123456789");
    for (least, most) in [(0, 5), (9, 8), (1, 65520)] {
        let params = json!({ "nqn": OTHER, "min_cntlid": least, "max_cntlid": most });
        let answer = fixture.answer("nvmf_create_subsystem", &params);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

#[test]
fn a_pipe_as_a_bdev_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (answered, answer) = channel();
    std::thread::spawn(move || {
        let params = json!({ "name": "p", "filename": pipe, "block_size": 512, "readonly": true });
        answered.send(Fixture::new().answer("bdev_aio_create", &params)).unwrap();
    });
    let answer = answer.recv_timeout(Duration::from_secs(60)).expect("the call returns at once");
    assert_eq!(answer["error"]["code"], -22, "{answer}");
}

#[test]
fn a_bdev_named_like_a_namespace_is_a_different_bdev() {
    let fixture = Fixture::new();
    fixture.subsystems();
    let name = format!("{NQN}/1");
    fixture.add(NQN, 1, Namespace::new("mem:1MiB")).unwrap();
    let params = json!({ "name": name, "block_size": 512, "num_blocks": 8 });
    fixture.ask("bdev_malloc_create", &params);
    assert_eq!(fixture.ask("bdev_get_bdevs", &json!({})).as_array().unwrap().len(), 2);
    fixture.ask("bdev_malloc_delete", &json!({ "name": name }));
    assert_eq!(fixture.document().subsystems[NQN].namespaces.len(), 1);
}

#[test]
fn a_wildcard_listener_stays_while_another_subsystem_needs_it() {
    let fixture = Fixture::new();
    fixture.subsystems();
    fixture.ask("nvmf_create_transport", &json!({ "trtype": "TCP" }));
    let free = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let at = |nqn: &str, address: &str| {
        let address = json!({ "trtype": "TCP", "traddr": address, "trsvcid": port });
        json!({ "nqn": nqn, "listen_address": address })
    };
    let listeners = || fixture.document().listeners.len();
    fixture.ask("nvmf_subsystem_add_listener", &at(NQN, "0.0.0.0"));
    fixture.ask("nvmf_subsystem_add_listener", &at(OTHER, "127.0.0.1"));
    assert_eq!(listeners(), 2);
    fixture.ask("nvmf_subsystem_remove_listener", &at(NQN, "0.0.0.0"));
    assert_eq!(listeners(), 2);
    fixture.ask("nvmf_subsystem_remove_listener", &at(OTHER, "127.0.0.1"));
    assert_eq!(listeners(), 1);
}

/// Creates a key file that only its owner can read.
fn key_file(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, "DHHC-1:00:not-looked-at:").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_host_is_never_saved_without_its_requirements() {
    let fixture = Fixture::new();
    fixture.subsystems();
    let names = ["open", "locked", "demanded", "identified", "restricted"];
    let names = names.map(|name| format!("nqn.2026-11.h:{name}"));
    let [open, locked, demanded, identified, restricted] = names.clone();
    let keyed = Host { dhchap_key: Some("/host.key".to_owned()), ..Host::default() };
    let limits = Limits { iops: Some(5), ..Limits::default() };
    let id = Some(Uuid::from_u128(7));
    fixture.edit(|document| {
        document.subsystems.get_mut(NQN).unwrap().hosts = BTreeMap::from([
            (open.clone(), Host { limits, ..Host::default() }),
            (locked.clone(), keyed.clone()),
            (demanded, Host { demand: Some(Demand::Concat), ..keyed.clone() }),
            (identified, Host { host_id: id, ..keyed.clone() }),
            (restricted, Host { dhchap_hashes: vec!["sha512".to_owned()], ..keyed.clone() }),
        ]);
    });
    let key = json!({ "nqn": NQN, "host": locked, "dhchap_key": "/host.key" });
    let saved = fixture.saved("nvmf_subsystem_add_host");
    assert_eq!(saved, [key, json!({ "nqn": NQN, "host": open })]);
    let named = json!({ "name": "/host.key", "path": "/host.key" });
    assert_eq!(fixture.saved("keyring_file_add_key"), [named]);
}

/// If a key is not in a file, its reference in the configuration is saved, and can be loaded.
#[test]
fn keys_without_a_file_are_saved_as_references() {
    let fixture = Fixture::new();
    fixture.subsystems();
    let of = |tls_key: &str| Host { tls_key: Some(tls_key.to_owned()), ..Host::default() };
    let hosts = BTreeMap::from([
        ("nqn.2026-11.h:ring".to_owned(), of("keyring:")),
        ("nqn.2026-11.h:unit".to_owned(), of("credential:tls")),
    ]);
    fixture.edit(|document| document.subsystems.get_mut(NQN).unwrap().hosts = hosts.clone());
    let calls = ["keyring_file_add_key", "nvmf_subsystem_add_host"];
    let saved = calls.map(|method| (method, fixture.saved(method)));
    assert!(saved.iter().all(|(_, saved)| saved.len() == 2), "{saved:?}");
    let again = Fixture::new();
    again.subsystems();
    for (method, params) in
        saved.iter().flat_map(|(method, all)| all.iter().map(|one| (*method, one)))
    {
        again.ask(method, params);
    }
    assert_eq!(again.document().subsystems[NQN].hosts, hosts);
}

#[test]
fn keyring_keys_name_key_files() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    let add = "keyring_file_add_key";
    let (one, open) = (key_file(folder.path(), "one"), key_file(folder.path(), "open"));
    std::fs::set_permissions(&open, Permissions::from_mode(0o640)).unwrap();
    fixture.ask(add, &json!({ "name": "key0", "path": one }));
    let secret = "DHHC-1:00:c2VjcmV0:";
    let missing = folder.path().join("missing");
    for (name, path, code) in [
        ("key0", one.as_str(), -17),
        (":key0", &one, -17),
        ("ring:key", &one, -22),
        ("", &one, -22),
        ("key1", "one", -1),
        ("key1", secret, -1),
        ("key1", &open, -1),
        ("key1", missing.to_str().unwrap(), -2),
    ] {
        let answer = fixture.answer(add, &json!({ "name": name, "path": path }));
        assert_eq!(answer["error"]["code"], code, "{name} {path}: {answer}");
        assert!(!answer.to_string().contains("c2VjcmV0"), "{answer}");
    }
    let host = "nqn.2026-11.h:a";
    let with = |key: &str, name: &str| json!({ "nqn": NQN, "host": host, key: name });
    let method = "nvmf_subsystem_add_host";
    for (key, name, code) in [
        ("dhchap_key", "nope", message::INVALID_PARAMETERS),
        ("psk", "nope", message::INTERNAL_ERROR),
        ("dhchap_ctrlr_key", "key0", message::INTERNAL_ERROR),
    ] {
        let answer = fixture.answer(method, &with(key, name));
        assert_eq!(answer["error"]["code"], code, "{key}: {answer}");
    }
    fixture.ask(method, &with("dhchap_key", "key0"));
    let listed = fixture.document().subsystems[NQN].hosts[host].clone();
    assert_eq!(listed, Host { dhchap_key: Some(one.clone()), ..Host::default() });
    let shown = fixture.ask("nvmf_get_subsystems", &json!({ "nqn": NQN }));
    assert_eq!(shown[0]["hosts"], json!([{ "nqn": host, "dhchap_key": "key0" }]));
    let keys = fixture.ask("keyring_get_keys", &json!({}));
    assert_eq!((&keys[0]["path"], &keys[0]["refcnt"]), (&json!(one), &json!(2)));
    let name = json!({ "name": "key0" });
    let answer = fixture.answer("keyring_file_remove_key", &name);
    assert_eq!(answer["error"]["code"], -16, "{answer}");
    fixture.ask("nvmf_subsystem_remove_host", &json!({ "nqn": NQN, "host": host }));
    fixture.ask("keyring_file_remove_key", &name);
    let answer = fixture.answer("keyring_file_remove_key", &name);
    assert_eq!(answer["error"]["code"], -126, "{answer}");
    // While every host may connect, a key for a host would have no effect.
    fixture.ask("nvmf_subsystem_allow_any_host", &json!({ "nqn": NQN, "allow_any_host": true }));
    fixture.ask(add, &json!({ "name": "key0", "path": one }));
    let answer = fixture.answer(method, &with("dhchap_key", "key0"));
    assert_eq!(answer["error"]["code"], message::INTERNAL_ERROR, "{answer}");
}

#[test]
fn new_keys_of_a_host_keep_its_other_settings() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    let files = ["one", "two", "tls"].map(|name| key_file(folder.path(), name));
    for (name, path) in ["key0", "key1", "psk0"].iter().zip(&files) {
        fixture.ask("keyring_file_add_key", &json!({ "name": name, "path": path }));
    }
    let [one, two, tls] = files.map(Some);
    let host = "nqn.2026-11.h:a";
    let with = |host: &str, keys: serde_json::Value| {
        let mut params = json!({ "nqn": NQN, "host": host });
        params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        params
    };
    let has = || fixture.document().subsystems[NQN].hosts[host].clone();
    let set = "nvmf_subsystem_set_keys";
    let added = with(host, json!({ "dhchap_key": "key0", "psk": "psk0" }));
    fixture.ask("nvmf_subsystem_add_host", &added);
    let wanted = Host { dhchap_key: one.clone(), tls_key: tls, ..Host::default() };
    assert_eq!(has(), wanted);
    for (params, code) in [
        (with("nqn.2026-11.h:b", json!({ "dhchap_key": "key1" })), -22),
        (with(host, json!({ "dhchap_ctrlr_key": "key1" })), -22),
        (with(host, json!({ "dhchap_key": "nope" })), message::INVALID_PARAMETERS),
        (with(host, json!({ "psk": "psk0" })), message::INVALID_PARAMETERS),
    ] {
        let answer = fixture.answer(set, &params);
        assert_eq!(answer["error"]["code"], code, "{params}: {answer}");
        assert_eq!(has(), wanted, "{params}");
    }
    fixture.ask(set, &with(host, json!({ "dhchap_key": "key1", "dhchap_ctrlr_key": "key0" })));
    let both = Host { dhchap_key: two, dhchap_ctrl_key: one, ..wanted.clone() };
    assert_eq!(has(), both);
    fixture.ask(set, &with(host, json!({})));
    assert_eq!(has(), Host { dhchap_key: None, ..wanted });
}

#[test]
fn a_listener_keeps_its_tls_requirement_when_saved() {
    let fixture = Fixture::new();
    fixture.subsystems();
    let at = *fixture.document().listeners.keys().next().unwrap();
    let tls = Tls::Required;
    fixture.edit(|document| {
        document.listeners.insert(at, Listener { tls, ..Listener::default() });
    });
    let (trtype, address) = ("TCP", at.ip().to_string());
    let place = json!({ "trtype": trtype, "traddr": address, "trsvcid": at.port().to_string() });
    fixture.ask("nvmf_create_transport", &json!({ "trtype": "TCP" }));
    fixture.ask("nvmf_subsystem_add_listener", &json!({ "nqn": NQN, "listen_address": place }));
    let state = json!({ "nqn": NQN, "listen_address": place, "ana_state": "non_optimized" });
    fixture.ask("nvmf_subsystem_listener_set_ana_state", &state);
    assert_eq!(fixture.document().listeners[&at].tls, tls);
    let saved = fixture.saved("nvmf_subsystem_add_listener");
    assert!(!saved.is_empty() && saved.iter().all(|it| it["secure_channel"] == true), "{saved:?}");
}

#[test]
fn disks_without_an_spdk_bdev_are_not_saved_as_files() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::new();
    fixture.subsystems();
    fixture.file(folder.path(), "a");
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": "a" } });
    fixture.ask("nvmf_subsystem_add_ns", &params);
    let paths = [
        "concat:512KiB@mem:1MiB,mem:1MiB",
        "range:0+512KiB,mem:1MiB",
        "mirror:mem:1MiB,mem:1MiB",
        "rbd:pool/image",
        "nvme+tcp://192.0.2.7/nqn.2026-11.h:there",
        "delay:1ms,mem:1MiB",
    ];
    for (nsid, path) in (2..).zip(paths) {
        fixture.add(NQN, nsid, Namespace::new(path)).unwrap();
    }
    fixture.add(NQN, 9, Namespace { read_only: true, ..Namespace::new("mem:1MiB") }).unwrap();
    // The bdev becomes read-only through another interface. `save_config` saves that, too.
    fixture.edit(|document| {
        let namespaces = &mut document.subsystems.get_mut(NQN).unwrap().namespaces;
        namespaces.get_mut(&1).unwrap().read_only = true;
    });
    let saved = fixture.saved("bdev_aio_create");
    let names: Vec<_> = saved.iter().map(|it| it["name"].clone()).collect();
    assert_eq!((names, &saved[0]["readonly"]), (vec![json!("a")], &json!(true)));
    assert!(fixture.saved("bdev_malloc_create").is_empty());
    let saved = fixture.saved("nvmf_subsystem_add_ns");
    assert_eq!((saved.len(), &saved[0]["namespace"]["bdev_name"]), (1, &json!("a")));
}

#[test]
fn a_client_creates_both_transports_and_each_listener_needs_its_own() {
    let fixture = Fixture::new();
    fixture.subsystems();
    fixture.ask("nvmf_create_transport", &json!({ "trtype": "TCP" }));
    let address = json!({ "trtype": "RDMA", "traddr": "192.0.2.7", "trsvcid": "4420" });
    let listener = json!({ "nqn": NQN, "listen_address": address });
    let refused = fixture.answer("nvmf_subsystem_add_listener", &listener)["error"].to_string();
    assert!(refused.contains("nvmf_create_transport with trtype RDMA"), "{refused}");
    fixture.ask("nvmf_create_transport", &json!({ "trtype": "rdma" }));
    let all = fixture.ask("nvmf_get_transports", &json!({}));
    let kinds: Vec<_> = all.as_array().unwrap().iter().map(|one| &one["trtype"]).collect();
    assert_eq!(kinds, ["TCP", "RDMA"]);
    let one = fixture.ask("nvmf_get_transports", &json!({ "trtype": "RDMA" }));
    assert_eq!((one.as_array().unwrap().len(), &one[0]["in_capsule_data_size"]), (1, &4096.into()));
}
