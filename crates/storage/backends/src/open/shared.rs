//! Opens each file or remote disk once for all its ranges. A file can be opened only once, and the
//! ranges of one disk must be checked for overlaps.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farblock_block::Namespace;

use super::OpenElsewhere;
use crate::error::OpenError;
use crate::spec::Spec;

struct Open {
    name: OsString,
    block_size: u32,
    read_only: bool,
    disk: Weak<dyn Namespace>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// Opens the disk of a range, or returns the disk if another range has opened it. If another range
/// has opened the file with other options, returns the error that the file is in use.
pub(crate) fn open(
    spec: &Spec,
    block_size: u32,
    read_only: bool,
    open: &OpenElsewhere<'_>,
) -> Result<Arc<dyn Namespace>, OpenError> {
    let name = match spec {
        Spec::File(path) => std::fs::canonicalize(path).ok().map(OsString::from),
        Spec::Remote(url) => Some(url.into()),
        _ => None,
    };
    let Some(name) = name else { return open(spec) };
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|one| one.disk.strong_count() > 0);
    let is_it = |one: &&Open| {
        one.name == name && one.block_size == block_size && one.read_only == read_only
    };
    if let Some(disk) = all.iter().find(is_it).and_then(|one| one.disk.upgrade()) {
        return Ok(disk);
    }
    let disk = open(spec)?;
    all.push(Open { name, block_size, read_only, disk: Arc::downgrade(&disk) });
    Ok(disk)
}
