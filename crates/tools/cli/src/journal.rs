//! Where a target writes down which controllers may carry out something on the remote disks that
//! its own are made of, before it uses them: whoever takes its place has them ended first, so that
//! a write that a dead target had sent does not undo what came after it. A set's disk does that
//! itself, as the successor of the one before; what becomes a mirror's leg is a new disk, and has
//! it done before.
//!
//! A file for each URL, in the folder where reservations are kept; without one nothing is known.

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

/// More than any of these files has, in bytes.
const MOST_BYTES: u64 = 1 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
/// By file.
static ALL: Mutex<BTreeMap<PathBuf, Entry>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<PathBuf, Entry>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in a file, and whose it is.
#[derive(Default)]
struct Entry {
    /// Of disks that are no more, here and before.
    left: Vec<ControllerLife>,
    /// Of those that are open, by number.
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
                "cannot write {}, without which no other process could go on safely: {}",
                path.display(),
                os(&error)
            )
        })
    }
}

/// From now on it is written down, in this folder.
pub(crate) fn keep_in(folder: &Path) -> io::Result<()> {
    let own = folder.join("controllers");
    std::fs::create_dir_all(&own)?;
    FOLDER.set(own).expect("a process has one target");
    Ok(())
}

/// Where it is written down for this disk, if there is a place, and what is there.
fn with_entry<T>(url: &Url, act: impl FnOnce(&Path, &mut Entry) -> T) -> Result<Option<T>, String> {
    let Some(folder) = FOLDER.get() else { return Ok(None) };
    let name = Uuid::new_v5(&Uuid::NAMESPACE_OID, url.without_keys().to_string().as_bytes());
    let path = folder.join(format!("{name}.json"));
    let mut all = all();
    if !all.contains_key(&path) {
        let entry = Entry { left: read(&path)?, ..Entry::default() };
        all.insert(path.clone(), entry);
    }
    let entry = all.get_mut(&path).expect("it is there");
    Ok(Some(act(&path, entry)))
}

/// What was left by whoever used the disk before, and where to write down what follows; nothing if
/// there is no place for it.
pub(crate) fn of(url: &Url) -> Result<Option<(Predecessor, Journal)>, String> {
    with_entry(url, |path, entry| {
        let controllers = entry.left.clone();
        let id = entry.open(controllers.clone());
        let journal = Journal { path: path.to_owned(), id, succeeds: true };
        (Predecessor { namespace: None, controllers }, journal)
    })
}

/// What was left by whoever used the disk before, for those who have it ended first and then
/// [begin](begin) with a new disk.
pub(crate) fn left(url: &Url) -> Result<Vec<ControllerLife>, String> {
    Ok(with_entry(url, |_, entry| entry.left.clone())?.unwrap_or_default())
}

/// All of these are over.
pub(crate) fn ended(url: &Url, lives: &[ControllerLife]) -> Result<(), String> {
    let written = with_entry(url, |path, entry| {
        entry.left.retain(|life| !lives.contains(life));
        entry.write(path)
    });
    written?.unwrap_or(Ok(()))
}

/// Where to write down what a new disk does; nothing if there is no place for it.
pub(crate) fn begin(url: &Url) -> Result<Option<Journal>, String> {
    with_entry(url, |path, entry| {
        let id = entry.open(Vec::new());
        Journal { path: path.to_owned(), id, succeeds: false }
    })
}

fn read(path: &Path) -> Result<Vec<ControllerLife>, String> {
    let damaged = |why: String| {
        format!(
            "{} cannot be used ({why}): remove it when nothing that was sent by the target before \
             this one can be carried out any more, after a minute for example",
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

/// Writes down what a disk tells.
pub(crate) struct Journal {
    path: PathBuf,
    id: u64,
    /// Its disk has what was left ended.
    succeeds: bool,
}

impl Record for Journal {
    fn namespace(&self, _: &KnownNamespace) -> Result<(), String> {
        Ok(())
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        let mut all = all();
        let entry = all.get_mut(&self.path).expect("it was made with this");
        entry.open.insert(self.id, lives.to_vec());
        // What everybody has had ended is over.
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
        let entry = all.get_mut(&self.path).expect("it was made with this");
        let lives = entry.open.remove(&self.id).unwrap_or_default();
        entry.left.extend(lives);
    }
}
