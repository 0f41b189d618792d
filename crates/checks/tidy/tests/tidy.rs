//! Rules of this repository that a program can check: dependencies between crates, places of
//! `unsafe`, and the lengths of files and lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The dependencies in `docs/ARCHITECTURE.md`: the crates that each crate may use outside of its
/// tests.
const ARROWS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("proto", &["wire"]),
    ("secure", &["wire"]),
    ("tls", &["random", "secure"]),
    ("random", &[]),
    ("mem", &[]),
    ("reactor", &["mem", "random"]),
    ("verbs", &[]),
    ("block", &["random", "reactor"]),
    ("backends", &["block", "mem", "random", "reactor"]),
    ("rbd", &["block", "reactor"]),
    ("volumes", &["block", "reactor"]),
    ("target", &["block", "proto", "reactor", "secure", "tls", "verbs", "wire"]),
    ("host", &["block", "proto", "reactor", "secure", "tls", "verbs", "wire"]),
    ("frontend", &["block", "reactor"]),
    ("iscsi", &["block", "frontend", "reactor"]),
    ("winspd", &["block", "frontend", "reactor"]),
    ("attach", &["block", "frontend", "reactor"]),
    (
        "daemon",
        &[
            "admin-api",
            "attach",
            "bench",
            "block",
            "frontend",
            "host",
            "iscsi",
            "program",
            "reactor",
            "winspd",
            "wire",
        ],
    ),
    ("state", &["proto", "wire"]),
    ("group", &["proto", "random"]),
    ("group-target", &["block", "group", "proto", "reactor", "target", "wire"]),
    ("group-service", &["group", "proto"]),
    ("admin-api", &["state"]),
    ("admin-client", &["admin-api"]),
    ("admin", &["admin-api", "admin-client", "backends", "block", "proto", "state", "target"]),
    ("spdk-rpc", &["admin", "admin-api", "backends", "block", "proto", "state", "target"]),
    ("bench", &["block", "random", "reactor"]),
    (
        "fleet",
        &[
            "attach", "backends", "bench", "block", "host", "iscsi", "proto", "random", "reactor",
            "target",
        ],
    ),
    ("capi", &["block", "host", "reactor", "tls"]),
    // The simulation may use all of these crates, because it runs the whole product in one thread.
    (
        "sim",
        &[
            "backends", "block", "host", "proto", "random", "reactor", "secure", "target", "tls",
            "volumes", "wire",
        ],
    ),
    ("fleet-sim", &["backends", "bench", "block", "fleet", "host", "proto", "reactor", "target"]),
    ("testkit", &[]),
    ("tidy", &[]),
    (
        "program",
        &["admin-api", "backends", "block", "host", "proto", "reactor", "secure", "state", "wire"],
    ),
    ("disks", &["backends", "block", "host", "program", "proto", "rbd", "state"]),
    ("transfer", &["backends", "block", "disks", "host", "program", "proto", "reactor"]),
    (
        "serve",
        &[
            "admin",
            "admin-api",
            "admin-client",
            "backends",
            "block",
            "disks",
            "group",
            "group-service",
            "group-target",
            "host",
            "program",
            "proto",
            "reactor",
            "secure",
            "spdk-rpc",
            "state",
            "target",
            "volumes",
            "wire",
        ],
    ),
    (
        "doctor",
        &[
            "admin-api",
            "admin-client",
            "attach",
            "backends",
            "block",
            "daemon",
            "disks",
            "frontend",
            "host",
            "program",
            "proto",
            "reactor",
            "verbs",
            "wire",
        ],
    ),
    ("import", &["program", "secure", "state", "wire"]),
    (
        "steer",
        &[
            "admin-api",
            "admin-client",
            "bench",
            "block",
            "daemon",
            "host",
            "import",
            "program",
            "secure",
            "serve",
            "state",
        ],
    ),
    ("demo", &["admin-api", "admin-client", "bench", "fleet", "host", "program"]),
    ("ui", &["admin", "admin-api", "admin-client", "daemon", "program", "serve"]),
    ("fleet-command", &["admin", "admin-api", "bench", "fleet", "host", "measure", "program"]),
    ("measure", &["backends", "bench", "block", "host", "program", "proto", "target"]),
    (
        "cli",
        &[
            "bench",
            "block",
            "daemon",
            "demo",
            "disks",
            "doctor",
            "fleet",
            "fleet-command",
            "frontend",
            "host",
            "measure",
            "program",
            "proto",
            "secure",
            "serve",
            "steer",
            "tls",
            "transfer",
            "ui",
            "wire",
        ],
    ),
];

/// All dependencies of the crates without I/O, except for this project's crates.
const WITHOUT_IO: &[(&str, &[&str])] = &[
    ("wire", &["zerocopy"]),
    ("proto", &["crc-fast", "crc32c", "zerocopy"]),
    ("secure", &["base64ct", "crypto-bigint", "hmac", "sha2", "subtle", "zeroize"]),
];

/// The crates that may contain `unsafe` code, and the reason.
const MAY_BE_UNSAFE: &[(&str, &str)] = &[
    ("mem", "memory that the kernel accesses"),
    ("reactor", "system calls, and memory that the kernel accesses"),
    ("capi", "a foreign ABI"),
    ("tls", "a library that is loaded at run time"),
    ("rbd", "a library that is loaded at run time"),
    ("verbs", "a library that is loaded at run time, and memory that devices access"),
    ("testkit", "an allocator that counts"),
];

/// The single files that may contain `unsafe` code. The reasons, in the order of the files:
///
/// - no crate offers the ioctls of loop devices with block size and direct I/O;
/// - the FUSE library cannot take over a mount, so farblock replaces the file behind its
///   descriptor;
/// - ublk shares memory with the driver, and the kernel fills the buffers of its ring entries;
/// - a monitor may truncate the memory that it shares with vhost-user, which raises SIGBUS;
/// - WinSpd's library is loaded at run time and calls back;
/// - no crate finds Windows threads by name;
/// - no crate offers the Windows calls for private folders and for handles of other processes;
/// - systemd passes a descriptor as a number.
const MAY_BE_UNSAFE_FILES: &[&str] = &[
    "attach/src/fuse/loop_device/ioctl.rs",
    "attach/src/fuse/resume.rs",
    "attach/src/ublk/kernel.rs",
    "attach/src/vhost_user/lent.rs",
    "winspd/src/library.rs",
    "bench/src/windows.rs",
    "daemon/src/system/windows/calls.rs",
    "program/src/notify.rs",
];

const MAX_FILE_LINES: usize = 800;
const MAX_COLUMNS: usize = 100;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_FIELDS: usize = 12;

/// The structs that may have more fields: options, configuration documents, and types that foreign
/// interfaces define.
const MAY_HAVE_MANY_FIELDS: &[&str] = &[
    "BenchArgs",
    "ControllerInfo",
    "ControllerView",
    "CreateSubsystem",
    "CreateTransport",
    "FileConfig",
    "NamespaceInfo",
    "NamespaceStatus",
    "NullCreate",
    "Options",
    "Plan",
    "Report",
    "RunArgs",
    "ServeArgs",
    "Settings",
    "StorageUnit",
    "SubsystemConfig",
    "SubsystemStatus",
    "TargetConfig",
    "Unit",
    "fb_info",
    "fb_options",
];

/// The structs that should be divided, and their numbers of fields. Remove a line when its struct
/// has few fields. Neither the list nor its numbers may grow.
const TO_BE_DIVIDED: [(&str, &str, usize); 34] = [
    ("transfer/src/namespace_sink.rs", "NamespaceSink", 16),
    ("attach/src/fuse/core.rs", "FuseRequest", 14),
    ("attach/src/fuse/core.rs", "Requests", 19),
    ("attach/src/nbd/connection/mod.rs", "Connection", 18),
    ("attach/src/nbd/core.rs", "Context", 13),
    ("attach/src/ublk/worker.rs", "Worker", 18),
    ("attach/src/vhost_user/worker.rs", "Worker", 18),
    ("bench/src/job.rs", "Job", 19),
    ("iscsi/src/connection/mod.rs", "Connection", 17),
    ("iscsi/src/context.rs", "Context", 14),
    ("iscsi/src/initiator/queue.rs", "SessionQueue", 16),
    ("iscsi/src/task.rs", "Task", 23),
    ("nvmf-host/src/disk/hub.rs", "Hub", 19),
    ("nvmf-host/src/disk/queue.rs", "DiskQueue", 21),
    ("nvmf-host/src/queue/table.rs", "Table", 16),
    ("nvmf-host/tests/peer/mod.rs", "Script", 20),
    ("nvmf-host/tests/stage/mod.rs", "Stage", 13),
    ("nvmf-target/src/context.rs", "Context", 15),
    ("nvmf-target/src/core.rs", "Core", 16),
    ("nvmf-target/src/session/mod.rs", "Session", 25),
    ("nvmf-target/src/session/mod.rs", "SessionRequest", 15),
    ("nvmf-target/src/shared.rs", "TargetShared", 24),
    ("nvmf-target/src/transport/tcp.rs", "Tcp", 15),
    ("proto/src/controller/connect.rs", "Connected", 13),
    ("proto/src/controller/registry.rs", "Registry", 18),
    ("proto/src/controller/state.rs", "Controller", 20),
    ("reactor/src/uring/mod.rs", "Uring", 18),
    ("sim/src/product/fenced/mod.rs", "Cluster", 19),
    ("sim/src/product/mod.rs", "Client", 17),
    ("volumes/src/mirror/keeper.rs", "Keeper", 18),
    ("volumes/src/mirror/queue.rs", "MirrorQueue", 16),
    ("volumes/src/mirror/shared.rs", "Shared", 19),
    ("daemon/src/status.rs", "Status", 13),
    ("nvmf-host/src/disk/path.rs", "PathInner", 13),
];

/// The folder of all crates. Each crate is in a subfolder, its room: `crates/ROOM/CRATE`.
fn rooms() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/").to_path_buf()
}

/// The folder of every crate, by the name of the crate without its prefix `farblock-`.
fn crates() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for room in fs::read_dir(rooms()).expect("crates/") {
        for entry in fs::read_dir(room.expect("an entry").path()).expect("a folder of crates") {
            let folder = entry.expect("an entry").path();
            let package = manifest(&folder)["package"]["name"].as_str().expect("text").to_owned();
            let name = package.strip_prefix("farblock-").unwrap_or("cli").to_owned();
            assert!(found.insert(name, folder).is_none(), "two crates are called {package}");
        }
    }
    found
}

fn folder(name: &str) -> PathBuf {
    crates().remove(name).unwrap_or_else(|| panic!("there is no crate {name}"))
}

fn manifest(folder: &Path) -> toml::Table {
    let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    text.parse().expect("TOML")
}

fn dependencies(folder: &Path) -> Vec<String> {
    let manifest = manifest(folder);
    let mut found = Vec::new();
    let mut tables = vec![manifest.get("dependencies")];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().map(|target| target.get("dependencies")));
    }
    for table in tables.into_iter().flatten() {
        found.extend(table.as_table().expect("a table").keys().cloned());
    }
    found
}

/// Every source folder of the workspace.
fn everywhere() -> Vec<(PathBuf, String)> {
    let mut all = sources(&rooms());
    all.extend(sources(&rooms().with_file_name("xtask")));
    all
}

/// The Rust sources below the folder of a crate, with their text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    files(folder, "rs")
}

/// The files below a folder that have this extension, with their text.
fn files(folder: &Path, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            let text = fs::read_to_string(&path).expect("text");
            found.push((path, text));
        }
    }
    found
}

#[test]
fn crates_use_only_their_allowed_dependencies() {
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for (name, folder) in crates() {
        let allowed = arrows.get(name.as_str()).unwrap_or_else(|| panic!("{name}: not in ARROWS"));
        for dependency in dependencies(&folder) {
            if let Some(used) = dependency.strip_prefix("farblock-") {
                assert!(allowed.contains(&used), "{name} must not depend on {used}");
            }
        }
    }
}

#[test]
fn protocol_crates_do_no_io() {
    for (name, allowed) in WITHOUT_IO {
        let folder = folder(name);
        for dependency in dependencies(&folder) {
            let ours = dependency.starts_with("farblock-");
            assert!(ours || allowed.contains(&dependency.as_str()), "{name} uses {dependency}");
        }
        let root = fs::read_to_string(folder.join("src/lib.rs")).expect("a root");
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            assert!(root.contains(attribute), "{name} lacks {attribute}");
        }
        for (path, text) in sources(&folder.join("src")) {
            // Unit tests may use any crate. They are at the end of a file, or in a separate file.
            if path.ends_with("tests.rs") {
                continue;
            }
            let code = text.split("#[cfg(test)]\nmod tests").next().expect("code before tests");
            assert!(!code.contains("std::"), "{} names std", path.display());
        }
    }
}

#[test]
fn unsafe_code_is_only_in_listed_crates_and_files() {
    let may = |name: &str| MAY_BE_UNSAFE.iter().any(|(allowed, _)| *allowed == name);
    for (name, _) in ARROWS.iter().filter(|(name, _)| !may(name)) {
        for (path, text) in sources(&folder(name).join("src")) {
            if MAY_BE_UNSAFE_FILES.iter().any(|file| path.ends_with(file)) {
                continue;
            }
            let found = ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|u| text.contains(u));
            assert!(!found, "{} has unsafe code", path.display());
        }
    }
    let xtask = rooms().with_file_name("xtask").join("src/main.rs");
    let text = fs::read_to_string(xtask).expect("xtask/src/main.rs exists");
    assert!(text.contains("#![forbid(unsafe_code)]"), "xtask may have unsafe code");
}

#[test]
fn files_and_lines_are_short() {
    for (path, text) in everywhere() {
        let code = text.split("#[cfg(test)]\nmod tests").next().expect("the code before the tests");
        let lines = code.lines().count();
        assert!(lines <= MAX_FILE_LINES, "{} has {lines} lines", path.display());
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(columns <= MAX_COLUMNS, "{place} has {columns} columns");
        }
    }
}

fn function_indent(line: &str) -> Option<usize> {
    let code = line.trim_start();
    let words = code.split_whitespace().take_while(|word| *word != "fn");
    let is_prefix = |word: &str| {
        word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
    };
    let begins = code.split_whitespace().any(|word| word == "fn")
        && words.into_iter().all(|word| is_prefix(word) || word.ends_with(')'));
    begins.then(|| line.len() - code.len())
}

/// The first function above the line limit. rustfmt indents the line that ends a function, with a
/// brace or (without a body) a semicolon, like the function's first line.
fn long_function(text: &str) -> Option<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().find_map(|(first, line)| {
        let indent = function_indent(line)?;
        let is_last = |line: &str| {
            let code = line.trim_start();
            line.len() - code.len() == indent && code.ends_with(['}', ';'])
        };
        let count = lines[first..].iter().position(|line| is_last(line)).unwrap_or(0) + 1;
        (count > MAX_FUNCTION_LINES).then_some((first + 1, count))
    })
}

#[test]
fn functions_are_short() {
    let body = "        x();\n".repeat(MAX_FUNCTION_LINES - 2);
    let fits = format!("impl A {{\n    pub(crate) unsafe fn a(\n    ) {{\n{body}    }}\n}}\n");
    assert_eq!(long_function(&fits), Some((2, MAX_FUNCTION_LINES + 1)), "one line too many");
    assert_eq!(long_function(&fits.replacen("        x();\n", "", 1)), None);
    for (path, text) in everywhere() {
        if let Some((line, count)) = long_function(&text) {
            panic!("{}:{line} begins a function of {count} lines", path.display());
        }
    }
}

/// The structs with too many fields, and their numbers of fields, in text formatted by rustfmt.
fn large_structs(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        let Some(rest) = strip_words(bare, &["pub", "pub(crate)", "pub(super)"])
            .strip_prefix("struct ")
            .filter(|rest| !rest.contains(';'))
        else {
            continue;
        };
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(rest);
        let end = format!("{}}}", &line[..indent]);
        let inside = lines.by_ref().take_while(|line| *line != end);
        let count = inside.filter(|line| is_field(line, indent + 4)).count();
        // A type of a C library keeps its name and its fields.
        let is_of_c = name.starts_with("ibv_") || name.starts_with("rdma_");
        if count > MAX_FIELDS && !is_of_c && !MAY_HAVE_MANY_FIELDS.contains(&name) {
            found.push((name, count));
        }
    }
    found
}

/// Whether a line begins with a word and a colon at the indentation of a field.
fn is_field(line: &str, indent: usize) -> bool {
    let bare = line.trim_start();
    let field = strip_words(bare, &["pub", "pub(crate)", "pub(super)"]);
    // Lines of a `where` clause are no fields: their types start with a capital letter.
    let is_word = |name: &str| name.chars().all(|c| c.is_lowercase() || c.is_numeric() || c == '_');
    line.len() - bare.len() == indent
        && field.split_once(": ").is_some_and(|(name, _)| is_word(name))
}

fn strip_words<'a>(text: &'a str, words: &[&str]) -> &'a str {
    match text.split_once(' ') {
        Some((first, rest)) if words.contains(&first) || first.starts_with("pub(in") => rest,
        _ => text,
    }
}

#[test]
fn large_structs_are_found() {
    let fields: String =
        (0..MAX_FIELDS).map(|at| format!("    /// It.\n    pub a{at}: u8,\n")).collect();
    let fits = format!("pub struct A<T>\nwhere\n    T: B,\n{{\n{fields}}}\n");
    assert_eq!(large_structs(&fits), []);
    let more = fits.replacen("{\n", "{\n    more: u8,\n", 1);
    let both = [("A", MAX_FIELDS + 1); 2];
    assert_eq!(large_structs(&format!("{more}\n{fits}\n{more}")), both, "one field too many");
}

#[test]
fn structs_have_few_fields() {
    let mut left: BTreeSet<_> = TO_BE_DIVIDED.iter().collect();
    for (path, text) in everywhere() {
        for (name, count) in large_structs(&text) {
            let is_it = |(file, of, _): &&(&str, &str, usize)| *of == name && path.ends_with(file);
            let known = left.iter().copied().find(is_it);
            left.retain(|other| Some(*other) != known);
            let (path, most) = (path.display(), known.map_or(MAX_FIELDS, |known| known.2));
            assert!(count <= most, "{path}: {name} has {count} fields: divide the struct");
        }
    }
    assert!(left.is_empty(), "these structs have few fields, so remove their lines: {left:?}");
}

/// Vague type names, and the maximum number of types with each name: a search for a name is useful
/// only if few types have it.
const VAGUE: &[(&str, usize)] = &[
    ("Bell", 0),
    ("Deed", 0),
    ("Kind", 0),
    ("Part", 2),
    ("Place", 4),
    ("Remains", 0),
    ("Request", 1),
    ("Shared", 2),
    ("State", 1),
];
/// The maximum number of types with any other name, which should fall over time. The path of a
/// crate distinguishes types with common names (`Options`, `StartError`), but not most others.
const MAX_OF_A_NAME: usize = 14;

fn defined_type(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("pub(in ") {
        Some(rest) => rest.split_once(") ")?.1,
        None => strip_words(line, &["pub", "pub(crate)", "pub(super)"]),
    };
    let words = ["struct ", "enum ", "trait ", "type "];
    let rest = words.iter().find_map(|word| rest.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn type_names_are_unique_enough_to_be_found() {
    assert_eq!(defined_type("pub(in super::super) enum State<T> {"), Some("State"));
    assert_eq!(defined_type("struct Shared(u8);"), Some("Shared"));
    assert_eq!(defined_type("    type Place = u8;"), None, "a type of a trait is not counted");
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in everywhere() {
        for name in text.lines().filter_map(defined_type) {
            found.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    for (name, places) in found {
        let vague = VAGUE.iter().find(|(vague, _)| *vague == name);
        let most = vague.map_or(MAX_OF_A_NAME, |(_, most)| *most);
        let count = places.len();
        assert!(count <= most, "{count} types are called {name}; be more precise: {places:?}");
    }
}

/// Relative clauses without a noun, which are wrong in English: "for who asks".
const HEADLESS: &[&str] = &[
    " but who ",
    " for who ",
    " by who ",
    " to who ",
    " from who ",
    " than who ",
    " that who ",
    " reach who ",
    " serve who ",
    " What who ",
];

#[test]
fn comments_have_no_clauses_without_a_noun() {
    for (path, text) in everywhere() {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let found = HEADLESS.iter().find(|words| line.contains(*words));
            assert!(found.is_none(), "{}:{}: name the subject: {line}", path.display(), number + 1);
        }
    }
}

/// `grep -q` exits at its first match, and the program that writes into the pipe gets SIGPIPE. With
/// `pipefail`, the check then fails, although grep found a match.
#[test]
fn scripts_do_not_pipe_into_grep_q() {
    let root = rooms().with_file_name("");
    for folder in ["contrib", "dashboard", "engines", "interop"] {
        for (path, text) in files(&root.join(folder), "sh") {
            // Packages of npm do not belong to this project.
            if path.components().any(|part| part.as_os_str() == "node_modules") {
                continue;
            }
            let joined = text.replace("\\\n", " ");
            for stage in joined.split('|').skip(1).map(str::trim_start) {
                let quiet = stage.strip_prefix("grep -").is_some_and(|rest| {
                    rest.split_whitespace().next().is_some_and(|flags| flags.contains('q'))
                });
                let place = path.display();
                assert!(!quiet || is_alternative(&joined, stage), "{place} pipes into grep -q");
            }
        }
    }
}

/// Whether a stage is not part of the pipeline, because a separate command starts after `||`.
fn is_alternative(text: &str, stage: &str) -> bool {
    let at = stage.as_ptr() as usize - text.as_ptr() as usize;
    text[..at].trim_end().ends_with("||")
}
