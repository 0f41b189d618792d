//! Detects open files that grow or become write-protected. Warns about open files that are deleted
//! or replaced: their contents are lost when they are closed.
//!
//! One thread per file system checks the sizes of its open files, away from the event loops. The
//! thread exits when none of these files is open. So a hung file server delays only the checks of
//! its own file system. Notifications by the kernel (inotify) are no alternative, because they
//! would make every write slower.

use super::{FileKind, FileShared, probe};
use farblock_block::Change;
use farblock_reactor::os::File;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The interval between two checks.
const PERIOD: Duration = Duration::from_secs(1);
/// The maximum time for which closing a file waits for a running check. If the check takes longer,
/// the file stays open until the check returns.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Keeps the checks of an open file running until this value is dropped. The drop waits for a
/// running check, so that the checking thread does not keep the file open.
pub(super) struct Attention {
    system: u64,
    number: u64,
    entry: Arc<Entry>,
}

struct Entry {
    kind: FileKind,
    path: PathBuf,
    state: Mutex<GrowthState>,
    /// Signalled at the end of a check.
    looked: Condvar,
    /// Whether to warn if the path no longer leads to the file.
    has_name: bool,
}

struct GrowthState {
    file: Option<Arc<FileShared>>,
    is_looked_at: bool,
}

/// The checked files by file system and by order of opening. Each file system has one thread.
type Systems = BTreeMap<u64, BTreeMap<u64, Weak<Entry>>>;

static SYSTEMS: Mutex<Systems> = Mutex::new(Systems::new());
static CHANGED: Condvar = Condvar::new();
/// The number of files registered so far, which is the key of the next one in [`Systems`].
static OPENED: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to check a file. If `meant_to_stay`, unlinking the file causes a warning.
pub(super) fn attend(
    shared: &Arc<FileShared>,
    kind: FileKind,
    path: &Path,
    meant_to_stay: bool,
) -> Attention {
    let state = Mutex::new(GrowthState { file: Some(Arc::clone(shared)), is_looked_at: false });
    // A file that already has no name was unlinked by the caller on purpose, so there is nothing to
    // warn about.
    let has_name = meant_to_stay && kind == FileKind::Regular && !shared.is_deleted();
    let (looked, path) = (Condvar::new(), path.to_owned());
    let entry = Arc::new(Entry { kind, path, state, looked, has_name });
    let system = shared.system().map_or(0, system_number);
    let mut systems = lock(&SYSTEMS);
    let one = Arc::downgrade(&entry);
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    match systems.get_mut(&system) {
        Some(entries) => drop(entries.insert(number, one)),
        None => {
            let thread = std::thread::Builder::new().name("file-sizes".to_owned());
            match thread.spawn(move || run(system)) {
                Ok(_) => drop(systems.insert(system, BTreeMap::from([(number, one)]))),
                Err(error) => tracing::warn!("cannot watch for files that grow: {error}"),
            }
        }
    }
    Attention { system, number, entry }
}

/// The device number of a file's file system.
#[cfg(unix)]
fn system_number(file: &std::fs::File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map_or(0, |found| found.dev())
}

/// Always 0: without such numbers, one thread checks all files.
#[cfg(not(unix))]
fn system_number(_: &std::fs::File) -> u64 {
    0
}

impl Drop for Attention {
    fn drop(&mut self) {
        let mut state = lock(&self.entry.state);
        let file = state.file.take();
        let ended = self.entry.looked.wait_timeout_while(state, LOOK_MAX, |it| it.is_looked_at);
        drop(ended);
        drop(file);
        let mut systems = lock(&SYSTEMS);
        let Some(entries) = systems.get_mut(&self.system) else { return };
        entries.remove(&self.number);
        if entries.is_empty() {
            CHANGED.notify_all();
        }
    }
}

fn run(system: u64) {
    let is_used = |systems: &mut Systems| systems.get(&system).is_some_and(|it| !it.is_empty());
    let mut systems = lock(&SYSTEMS);
    while is_used(&mut systems) {
        let waited = CHANGED.wait_timeout_while(systems, PERIOD, is_used);
        systems = waited.unwrap_or_else(PoisonError::into_inner).0;
        let entries: Vec<_> = systems[&system].values().filter_map(Weak::upgrade).collect();
        drop(systems);
        entries.iter().for_each(|entry| entry.look());
        systems = lock(&SYSTEMS);
    }
    systems.remove(&system);
}

impl Entry {
    fn look(&self) {
        let mut state = lock(&self.state);
        let Some(shared) = state.file.clone() else { return };
        state.is_looked_at = true;
        drop(state);
        shared.look_for_cut(self.kind);
        let has_new_geometry = shared.has_grown(self.kind) | shared.look_for_protection(self.kind);
        let lost = self.has_name && self.has_just_lost_name(&shared);
        let changes = (has_new_geometry || lost).then(|| shared.changes.clone());
        drop(shared);
        lock(&self.state).is_looked_at = false;
        self.looked.notify_all();
        // Call the listeners last, since they may drop the file.
        let Some(changes) = changes else { return };
        if has_new_geometry {
            changes.tell(Change::Geometry);
        }
        if lost {
            changes.tell(Change::Contents);
        }
    }

    /// Returns true if the path led to the file at the last check and no longer does.
    fn has_just_lost_name(&self, shared: &FileShared) -> bool {
        let found = match self.has_lost_name(shared) {
            false => NAMED,
            true if shared.is_deleted() => DELETED,
            true => ELSEWHERE,
        };
        let before = shared.name.swap(found, Ordering::Relaxed);
        if before != found {
            match shared.name_text() {
                Some(text) => tracing::warn!("{text}"),
                None => tracing::warn!("{} has its former name again", self.path.display()),
            }
        }
        before == NAMED && found != NAMED
    }

    /// Whether the path no longer leads to the open file.
    #[cfg(unix)]
    fn has_lost_name(&self, shared: &FileShared) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Some(Ok(ours)) = shared.system().map(std::fs::File::metadata) else { return false };
        let is_other = match std::fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) != (ours.dev(), ours.ino()),
            // Other errors, such as a missing permission, do not prove that the path is gone.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        ours.nlink() == 0 || is_other
    }

    /// Always false on this system: an open file keeps its path.
    #[cfg(not(unix))]
    fn has_lost_name(&self, _: &FileShared) -> bool {
        false
    }
}

/// Checks the size of a simulated file on a simulated thread. The thread exits when no user has the
/// file open.
#[cfg(feature = "sim")]
pub(super) fn attend_simulated(shared: &Arc<FileShared>) {
    let shared = Arc::downgrade(shared);
    let look = move || {
        loop {
            farblock_reactor::os::sleep(PERIOD);
            let Some(shared) = shared.upgrade() else { return };
            shared.look_for_cut(FileKind::Regular);
            if shared.has_grown(FileKind::Regular) {
                let changes = shared.changes.clone();
                drop(shared);
                changes.tell(Change::Geometry);
            }
        }
    };
    farblock_reactor::os::spawn("file-sizes".to_owned(), look).expect("the thread starts");
}

/// The path leads to the open file.
const NAMED: u8 = 0;
/// The path leads to another file or to none, and the open file has another name.
const ELSEWHERE: u8 = 1;
/// The open file has no name.
const DELETED: u8 = 2;

impl FileShared {
    /// A sentence for the operator about an open file whose contents are lost when it is closed.
    pub(super) fn loss_text(&self) -> Option<String> {
        let is_deleted = self.name.load(Ordering::Relaxed) == DELETED;
        self.name_text().filter(|_| is_deleted)
    }

    /// A sentence for the operator about an open file whose path no longer leads to it.
    fn name_text(&self) -> Option<String> {
        let path = self.extent.name();
        match self.name.load(Ordering::Relaxed) {
            NAMED => None,
            DELETED => Some(format!(
                "{path} was deleted, or replaced by another file, while it is in use: closing it \
                 loses its data, so copy the disk to another file first"
            )),
            _ => Some(format!(
                "{path} was renamed while it is in use, and the next start would not find it: give \
                 it its former name again"
            )),
        }
    }

    /// The open file of the system; `None` for a simulated file.
    pub(super) fn system(&self) -> Option<&std::fs::File> {
        match &self.file {
            File::System(file) => Some(file),
            #[allow(unreachable_patterns, reason = "builds with `sim` have a second variant")]
            _ => None,
        }
    }

    /// Whether the file has been unlinked.
    #[cfg(unix)]
    pub(super) fn is_deleted(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let found = self.system().and_then(|file| file.metadata().ok());
        found.is_some_and(|found| found.nlink() == 0)
    }

    /// Always false on this system: an open file keeps its path.
    #[cfg(not(unix))]
    pub(super) fn is_deleted(&self) -> bool {
        false
    }

    /// Whether the file has grown. Updates the size, but notifies no listener.
    pub(super) fn has_grown(&self, kind: FileKind) -> bool {
        let block_size = self.geometry.block_size;
        let blocks = match (self.system(), self.file.simulated_size()) {
            (Some(file), _) => probe::whole_blocks(file, kind, block_size).ok(),
            (None, bytes) => bytes.map(|bytes| bytes / u64::from(block_size)),
        };
        let Some(blocks) = blocks else { return false };
        let blocks = blocks.min(i64::MAX as u64 / u64::from(block_size));
        self.blocks.fetch_max(blocks, Ordering::Relaxed) < blocks
    }
}
