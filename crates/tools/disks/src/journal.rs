//! Journals. For each remote disk that is a part of a set, a mirror or another disk, a target
//! records the NVMe controllers over which it uses the remote disk.
//!
//! Such a controller may still execute commands after the target has died. The target therefore
//! records each controller before it uses the controller. The target's successor first closes the
//! recorded controllers, so that a late write of the dead target cannot overwrite newer data. For a
//! member of a stripe set or concatenation, [`Disk::succeed`](farblock_host::disk::Disk::succeed)
//! closes the recorded controllers. A mirror opens each leg as a new disk, so the code that opens
//! the mirror closes them.
//!
//! Each URL has one journal file, in the folder of the reservations (`--state-dir`). Without this
//! folder the target keeps no journals.

use crate::error::os;
use crate::lives::{Life, VERSION};
use farblock_host::disk::{ControllerLife, KnownNamespace, Predecessor, Record};
use farblock_host::url::Url;
use farblock_state::replace_file;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use uuid::Uuid;

/// The maximum size of a journal file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
/// The contents of all journals in use, by file.
static ALL: Mutex<BTreeMap<PathBuf, Entry>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<PathBuf, Entry>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The controllers in one journal file.
#[derive(Default)]
struct Entry {
    /// Controllers of disks that are closed now, of this process and of earlier ones.
    left: Vec<ControllerLife>,
    /// Controllers of open disks, by disk number.
    open: BTreeMap<u64, Vec<ControllerLife>>,
    next: u64,
}

impl Entry {
    fn open(&mut self, lives: Vec<ControllerLife>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, lives);
        id
    }

    fn write(&self, path: &Path) -> Result<(), String> {
        let mut lives: Vec<&ControllerLife> = Vec::new();
        for life in self.left.iter().chain(self.open.values().flatten()) {
            if !lives.contains(&life) {
                lives.push(life);
            }
        }
        let lives: Vec<Life> = lives.into_iter().map(Life::new).collect();
        let text = serde_json::to_string(&lives).expect("our own types are JSON");
        replace_file(path, text.as_bytes(), |_| true).map_err(|error| {
            format!(
                "cannot write {}, which the next process needs to use this disk safely: {}",
                path.display(),
                os(&error)
            )
        })
    }
}

/// Starts to keep journals in this folder.
///
/// # Errors
/// The folder cannot be created.
pub fn keep_in(folder: &Path) -> io::Result<()> {
    let own = folder.join("controllers");
    std::fs::create_dir_all(&own)?;
    FOLDER.set(own).expect("a process has one target");
    Ok(())
}

/// Calls `act` with the file and the entry of this disk. Returns `None` if no folder is set.
fn with_entry<T>(url: &Url, act: impl FnOnce(&Path, &mut Entry) -> T) -> Result<Option<T>, String> {
    let Some(folder) = FOLDER.get() else { return Ok(None) };
    let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, url.without_keys().to_string().as_bytes());
    let path = folder.join(format!("{name}.json"));
    let mut all = all();
    if !all.contains_key(&path) {
        let entry = Entry { left: read(&path)?, ..Entry::default() };
        all.insert(path.clone(), entry);
    }
    let entry = all.get_mut(&path).expect("the entry was inserted above");
    Ok(Some(act(&path, entry)))
}

/// Returns the controllers of the disk's previous user, and a journal for the new user; `None` if
/// no folder is set.
pub(crate) fn of(url: &Url) -> Result<Option<(Predecessor, Journal)>, String> {
    with_entry(url, |path, entry| {
        let controllers = entry.left.clone();
        let id = entry.open(controllers.clone());
        let journal = Journal { path: path.to_owned(), id, succeeds: true };
        (Predecessor { namespace: None, controllers }, journal)
    })
}

/// Returns the controllers of the disk's previous user. The caller closes those controllers, and
/// then calls [`begin`] for a new disk.
///
/// # Errors
/// The journal cannot be read.
pub fn left(url: &Url) -> Result<Vec<ControllerLife>, String> {
    Ok(with_entry(url, |_, entry| entry.left.clone())?.unwrap_or_default())
}

/// Removes these controllers from the journal, after the caller has closed them.
///
/// # Errors
/// The journal cannot be read or written.
pub fn ended(url: &Url, lives: &[ControllerLife]) -> Result<(), String> {
    let written = with_entry(url, |path, entry| {
        entry.left.retain(|life| !lives.contains(life));
        entry.write(path)
    });
    written?.unwrap_or(Ok(()))
}

/// Returns a journal for a new disk; `None` if no folder is set.
///
/// # Errors
/// The journal cannot be read.
pub fn begin(url: &Url) -> Result<Option<Journal>, String> {
    with_entry(url, |path, entry| {
        let id = entry.open(Vec::new());
        Journal { path: path.to_owned(), id, succeeds: false }
    })
}

fn read(path: &Path) -> Result<Vec<ControllerLife>, String> {
    let damaged = |why: String| {
        format!(
            "{} cannot be used ({why}): wait until no command of the previous target can still be \
             executed (a minute, for example), and remove the file",
            path.display()
        )
    };
    let text = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(metadata) if metadata.len() > MOST_BYTES => Err("it is too large".to_owned()),
        _ => std::fs::read_to_string(path).map_err(|error| os(&error)),
    };
    let lives: Vec<Life> = serde_json::from_str(&text.map_err(damaged)?)
        .map_err(|error| damaged(error.to_string()))?;
    if lives.iter().any(|life| life.version > VERSION) {
        return Err(damaged("a newer farblock wrote it".to_owned()));
    }
    let lives = lives.iter().map(Life::life).collect::<Option<Vec<_>>>();
    lives.ok_or_else(|| damaged("it is malformed".to_owned()))
}

/// Records the controllers of one disk.
pub struct Journal {
    path: PathBuf,
    id: u64,
    /// Whether the disk itself closes its predecessor's controllers.
    succeeds: bool,
}

impl Record for Journal {
    fn namespace(&self, _: &KnownNamespace) -> Result<(), String> {
        Ok(())
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        let mut all = all();
        let entry = all.get_mut(&self.path).expect("an open journal has an entry");
        entry.open.insert(self.id, lives.to_vec());
        // A disk that has closed its predecessor's controllers no longer reports them. Remove the
        // controllers that no open disk reports.
        let Entry { left, open, .. } = &mut *entry;
        if self.succeeds {
            left.retain(|life| open.values().flatten().any(|other| other == life));
        }
        entry.write(&self.path)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let mut all = all();
        let entry = all.get_mut(&self.path).expect("an open journal has an entry");
        let lives = entry.open.remove(&self.id).unwrap_or_default();
        entry.left.extend(lives);
    }
}
