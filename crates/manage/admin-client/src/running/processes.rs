//! Finds the control sockets of running targets from the command lines of processes: `--control`
//! may name a socket in any folder.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the `--control` paths of this machine's targets. Skips processes that this user may not
/// inspect.
pub(super) fn control_sockets() -> Vec<PathBuf> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_process =
        |name: &OsStr| name.to_str().is_some_and(|it| it.bytes().all(|c| c.is_ascii_digit()));
    let processes = all.flatten().filter(|entry| is_process(&entry.file_name()));
    processes.filter_map(|entry| of_process(&entry.path())).collect()
}

fn of_process(process: &Path) -> Option<PathBuf> {
    let line = std::fs::read(process.join("cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let given = control_of(&words)?;
    // Resolve a relative path from the process's working folder.
    match given.is_absolute() {
        true => Some(given.to_owned()),
        false => Some(std::fs::read_link(process.join("cwd")).ok()?.join(given)),
    }
}

/// The value of `--control` on the command line of `farblock serve`.
fn control_of<'a>(words: &[&'a [u8]]) -> Option<&'a Path> {
    let (program, words) = words.split_first()?;
    let name = Path::new(OsStr::from_bytes(program)).file_name()?;
    if !name.as_bytes().starts_with(b"farblock") || !words.contains(&&b"serve"[..]) {
        return None;
    }
    let value = words.iter().enumerate().find_map(|(at, word)| match *word {
        b"--control" => words.get(at + 1).copied(),
        word => word.strip_prefix(b"--control="),
    })?;
    Some(Path::new(OsStr::from_bytes(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_socket_is_found_in_the_command_line_of_a_target() {
        let of = |line: &'static str| {
            let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
            control_of(&words).map(|path| path.to_str().expect("text"))
        };
        assert_eq!(of("/usr/bin/farblock serve a.img --control /srv/a"), Some("/srv/a"));
        assert_eq!(of("./farblock -v serve --control=b a.img"), Some("b"));
        for other in ["farblock serve a.img", "farblock ctl --control /srv/a", "sh serve", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
