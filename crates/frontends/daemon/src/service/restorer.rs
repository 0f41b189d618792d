//! The attachments that the Windows service manages.

use super::super::args::DetachArgs;
use super::super::folder::{Folder, Role, check_name};
use super::super::supervisor::again;
use super::super::{detach, settings, system};
use crate::args::RuntimeArgs;
use farblock_program::args::Global;
use farblock_program::error::{Result, os};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// An attachment that a configuration file describes.
struct Wanted {
    folder: Folder,
    state: RestoreState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RestoreState {
    /// The disk is not attached. The service retries until it is.
    Missing,
    /// The service has attached the disk. If an administrator then detaches it, the service does
    /// not attach it again.
    Attached,
    /// The file is invalid, or the service is stopping. The service does nothing more.
    Over,
}

pub(super) struct Restorer<'a> {
    global: &'a Global,
    program: PathBuf,
    runtime: PathBuf,
    all: Vec<Wanted>,
}

impl<'a> Restorer<'a> {
    /// Reads the names of the configuration files that exist now.
    pub(super) fn new(global: &'a Global) -> Result<Restorer<'a>> {
        let runtime = super::super::folder::runtime(None)?;
        let files = settings::restored()?;
        let all: Vec<Wanted> = names(&files)
            .into_iter()
            .map(|name| Wanted { folder: Folder(runtime.join(name)), state: RestoreState::Missing })
            .collect();
        tracing::info!("{} has files for {} disks", files.display(), all.len());
        let program = std::env::current_exe().unwrap_or_else(|_| "farblock".into());
        Ok(Restorer { global, program, runtime, all })
    }

    /// Attaches the missing disks, until `until` returns true.
    pub(super) fn attach(&mut self, until: impl Fn() -> bool) {
        for wanted in &mut self.all {
            let folder = &wanted.folder;
            let lives = || folder.is_held(Role::Server) || folder.is_held(Role::Supervisor);
            wanted.state = match wanted.state {
                RestoreState::Missing | RestoreState::Attached if lives() => RestoreState::Attached,
                // The attachment's folder still exists, so its processes have died. (A detach would
                // have removed the folder.)
                RestoreState::Attached if folder.0.exists() => RestoreState::Missing,
                state => state,
            };
            if wanted.state == RestoreState::Missing && !until() {
                wanted.state = attach(&self.program, self.global, &folder.name());
            }
        }
    }

    /// Detaches the disks that are not in use. Returns the number of disks that remain attached.
    pub(super) fn detach(&mut self) -> usize {
        for wanted in &mut self.all {
            if wanted.state != RestoreState::Attached || !wanted.folder.0.exists() {
                wanted.state = RestoreState::Over;
                continue;
            }
            let args = DetachArgs {
                names: vec![wanted.folder.name()],
                all: false,
                force: false,
                runtime: RuntimeArgs { runtime_dir: Some(self.runtime.clone()) },
            };
            match detach::run(&args) {
                Ok(()) => wanted.state = RestoreState::Over,
                Err(failure) => tracing::warn!("{}", failure.sentence()),
            }
        }
        self.all.iter().filter(|wanted| wanted.state != RestoreState::Over).count()
    }
}

/// Returns the names of the configuration files without `.toml`, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".toml")?.to_owned()))
        .filter(|name| match check_name(name) {
            Ok(()) => true,
            Err(sentence) => {
                tracing::warn!("{}: {sentence}", folder.display());
                false
            }
        })
        .collect();
    names.sort();
    names
}

/// Runs `farblock attach` for one file.
fn attach(program: &Path, global: &Global, name: &str) -> RestoreState {
    /// The exit code for an invalid file, which a retry cannot fix.
    const USAGE: i32 = 2;
    let mut command = again(program, global);
    command.args(["attach", "--restore", name, "--json"]).stdin(Stdio::null());
    system::make_server(&mut command);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            tracing::error!("{name}: cannot start a process: {}", os(&error));
            return RestoreState::Missing;
        }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', " ");
    if output.status.success() {
        tracing::info!("{name} is attached: {}", text(&output.stdout));
        return RestoreState::Attached;
    }
    let sentence = text(&output.stderr);
    tracing::error!("{name}: {}", sentence.strip_prefix("error: ").unwrap_or(&sentence));
    if output.status.code() == Some(USAGE) { RestoreState::Over } else { RestoreState::Missing }
}
