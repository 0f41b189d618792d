//! Files that grow while they are open.
//!
//! One thread of the process looks at the sizes of all open files now and then, away from the event
//! loops; it ends when there are none. Being told by the system (inotify) would cost every write to
//! them.

use super::{FileShared, Kind, probe};
use farblock_block::Change;
use farblock_reactor::os::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// An open file that is looked at; until it is dropped, which waits for a look that is under way:
/// then nobody holds the file open for that.
pub(super) struct Attention(Arc<Entry>);

struct Entry {
    kind: Kind,
    file: Mutex<Option<Arc<FileShared>>>,
}

/// Everything that is looked at, and whether a thread does.
struct Files {
    entries: Vec<Weak<Entry>>,
    is_attended: bool,
}

static FILES: Mutex<Files> = Mutex::new(Files { entries: Vec::new(), is_attended: false });
static CHANGED: Condvar = Condvar::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a file looked at.
pub(super) fn attend(shared: &Arc<FileShared>, kind: Kind) -> Attention {
    let entry = Arc::new(Entry { kind, file: Mutex::new(Some(Arc::clone(shared))) });
    let mut files = lock(&FILES);
    files.entries.push(Arc::downgrade(&entry));
    if !files.is_attended {
        let thread = std::thread::Builder::new().name("file-sizes".to_owned()).spawn(run);
        match thread {
            Ok(_) => files.is_attended = true,
            Err(error) => tracing::warn!("nobody will notice files that grow: {error}"),
        }
    }
    Attention(entry)
}

impl Drop for Attention {
    fn drop(&mut self) {
        let file = lock(&self.0.file).take();
        drop(file);
        let mut files = lock(&FILES);
        files.entries.retain(|entry| !std::ptr::eq(entry.as_ptr(), Arc::as_ptr(&self.0)));
        if files.entries.is_empty() {
            CHANGED.notify_all();
        }
    }
}

fn run() {
    let mut files = lock(&FILES);
    while !files.entries.is_empty() {
        let waited = CHANGED.wait_timeout_while(files, PERIOD, |files| !files.entries.is_empty());
        files = waited.unwrap_or_else(PoisonError::into_inner).0;
        let entries: Vec<_> = files.entries.iter().filter_map(Weak::upgrade).collect();
        drop(files);
        entries.iter().for_each(|entry| entry.look());
        files = lock(&FILES);
    }
    files.is_attended = false;
}

impl Entry {
    fn look(&self) {
        let file = lock(&self.file);
        let grown = file.as_ref().filter(|shared| shared.has_grown(self.kind));
        let changes = grown.map(|shared| shared.changes.clone());
        drop(file);
        // Whoever is told may drop the file.
        changes.into_iter().for_each(|changes| changes.tell(Change::Geometry));
    }
}

impl FileShared {
    /// The file itself, unless it is one of a simulated world.
    pub(super) fn system(&self) -> Option<&std::fs::File> {
        match &self.file {
            File::System(file) => Some(file),
            #[allow(unreachable_patterns, reason = "there is another where it is simulated")]
            _ => None,
        }
    }

    /// Whether there are more blocks than there were; nobody is told yet.
    pub(super) fn has_grown(&self, kind: Kind) -> bool {
        let Some(file) = self.system() else { return false };
        let block_size = self.geometry.block_size;
        let Ok(blocks) = probe::whole_blocks(file, kind, block_size) else { return false };
        let blocks = blocks.min(i64::MAX as u64 / u64::from(block_size));
        self.blocks.fetch_max(blocks, Ordering::Relaxed) < blocks
    }
}
