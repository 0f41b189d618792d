//! Checks that release archives are identical wherever they are packed. `make dist` checks the same
//! for the programs, which takes too long for a test.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHIVES: [&str; 2] = ["farblock-linux-x86_64.tar.gz", "farblock-windows-x86_64.zip"];

/// Packs two small programs in a folder, with the umask and time zone of a user.
fn pack(folder: &Path, umask: &str, timezone: &str) -> PathBuf {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).expect("the folder is created");
    for name in ["farblock", "farblock.exe"] {
        fs::write(programs.join(name), name).expect("the file is written");
        let mode = if umask == "077" { 0o600 } else { 0o755 };
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(mode))
            .expect("the permissions are set");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../contrib/dist.sh");
    let dist = folder.join("dist");
    let output = Command::new("bash")
        .args(["-c", "umask \"$1\" && exec \"$2\" --pack \"$3\"", "pack", umask])
        .args([&script, &programs])
        .env("DIST_DIR", &dist)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env("TZ", timezone)
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dist
}

fn said(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).env("TZ", "UTC").output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn release_archives_do_not_depend_on_umask_and_time_zone() {
    let (one, other) = (
        tempfile::tempdir().expect("a temporary folder is created"),
        tempfile::tempdir().expect("a temporary folder is created"),
    );
    let one = pack(one.path(), "022", "UTC");
    let other = pack(other.path(), "077", "Pacific/Auckland");
    for name in ARCHIVES.into_iter().chain(["SHA256SUMS"]) {
        let read = |folder: &Path| fs::read(folder.join(name)).expect("the file opens");
        assert!(read(&one) == read(&other), "{name} differs");
    }
    let sums = fs::read_to_string(one.join("SHA256SUMS")).expect("the file is readable");
    assert!(ARCHIVES.iter().all(|name| sums.contains(name)), "{sums}");

    let tar = one.join(ARCHIVES[0]);
    let list =
        said("tar", &["--list", "--verbose", "--file", tar.to_str().expect("the path is UTF-8")]);
    assert!(list.lines().all(|line| line.contains(" 0/0 ") && line.contains("2023-11-14 22:13")));
    assert!(list.contains("-rwxr-xr-x"), "{list}");
    for file in ["farblock", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        assert!(list.contains(&format!("farblock-linux-x86_64/{file}\n")), "no {file} in\n{list}");
    }
    assert!(list.contains("/docs/attach.md") && list.contains("/farblock-attach@.service"));
    let file = "farblock-linux-x86_64/NOTICES.txt";
    let notices = said("tar", &["-xOf", tar.to_str().expect("the path is UTF-8"), file]);
    for part in ["=== clap ", "=== io-uring ", "Permission is hereby granted"] {
        assert!(notices.contains(part), "no {part} in the notices");
    }
    assert!(!notices.contains("=== farblock"), "farblock's own code is listed as a notice");

    let open = tempfile::tempdir().expect("a temporary folder is created");
    let place = open.path().to_str().expect("the path is UTF-8");
    said("tar", &["-xf", tar.to_str().expect("the path is UTF-8"), "-C", place]);
    let (pages, dead) = links(&open.path().join("farblock-linux-x86_64"));
    assert!(pages > 5 && dead.is_empty(), "{pages} pages, with broken links: {dead:#?}");
}

/// Returns the number of pages in a folder, and their relative links to missing files.
fn links(folder: &Path) -> (usize, Vec<String>) {
    let (mut pages, mut dead) = (0, Vec::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is readable") {
            let path = entry.expect("the entry is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                pages += 1;
                let text = fs::read_to_string(&path).expect("the file is readable");
                let targets =
                    text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
                let relative = targets.filter(|link| !link.is_empty() && !link.contains(':'));
                let missing = relative.filter(|link| !folder.join(link).exists());
                dead.extend(missing.map(|link| format!("{}: {link}", path.display())));
            }
        }
    }
    (pages, dead)
}
