//! `--resume`: records the progress of a transfer in a file that outlives the process.
//!
//! A transfer moves bytes in order, so its progress is one number, which grows when data become
//! durable. The file also describes the source and the destination. Each update replaces the whole
//! file.

use crate::error::{Failure, Result, os};
use crate::replace::Replacement;
use farblock_block::size::FullSize;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The file extension of records in the user's state folder. Records of regular files are next to
/// the file instead.
const EXTENSION: &str = "farblock-map";

/// A source or destination. A transfer resumes only if neither has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) name: String,
    /// An identity that changes if this end is replaced or modified.
    pub(super) identity: String,
    pub(super) bytes: u64,
}

/// A transfer and its progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) source: End,
    pub(super) destination: End,
    /// The offset of the first byte in the source.
    pub(super) from: u64,
    /// The offset of the first byte in the destination.
    pub(super) to: u64,
    pub(super) length: u64,
    pub(super) done: u64,
}

/// The contents of the file on disk.
#[derive(Serialize, Deserialize)]
struct Sealed {
    farblock_map: Record,
    /// A checksum over the record, to detect damage.
    seal: String,
}

impl Record {
    fn seal(&self) -> String {
        let text = serde_json::to_vec(self).expect("our own types can be written as JSON");
        Uuid::new_v5(&Uuid::NAMESPACE_OID, &text).to_string()
    }
}

/// A record, and the file that contains it.
pub(super) struct Map {
    path: PathBuf,
    record: Record,
}

impl Map {
    /// Returns the record at `path` if it describes the same transfer as `record`. Without a file,
    /// starts with `record`.
    pub(super) fn open(path: PathBuf, record: Record) -> Result<Map> {
        match read(&path)? {
            None => {
                let map = Map { path, record };
                map.write()?;
                Ok(map)
            }
            Some(old) => {
                check(&old, &record, &path)?;
                Ok(Map { path, record: old })
            }
        }
    }

    pub(super) fn done(&self) -> u64 {
        self.record.done
    }

    /// Records that `done` bytes are durable.
    pub(super) fn reached(&mut self, done: u64) -> Result<()> {
        if done <= self.record.done {
            return Ok(());
        }
        self.record.done = done;
        self.write()
    }

    fn write(&self) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| {
                let (folder, error) = (folder.display(), os(&error));
                Failure::run(format_args!("cannot make the folder {folder}: {error}"))
            })?;
        }
        let sealed = Sealed { farblock_map: self.record.clone(), seal: self.record.seal() };
        let text =
            serde_json::to_string_pretty(&sealed).expect("our own types can be written as JSON");
        let new = Replacement::begin(&self.path, false)?;
        new.fill(text.as_bytes())?;
        new.commit()
    }

    /// Removes the record of a finished transfer.
    pub(super) fn remove(self) {
        forget(&self.path);
    }
}

/// Removes a record. If this fails, logs a warning.
pub(super) fn forget(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {}", path.display(), os(&error));
    }
}

/// Removes records of other transfers to the same destination whose range overlaps `written`.
/// Resuming such a transfer would mix old and new data.
pub(super) fn forget_overwritten(destination: &End, written: Range<u64>) {
    let Ok(own) = path_for(destination, written.start) else { return };
    let folder = own.parent().unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_map = path.extension().is_some_and(|extension| extension == EXTENSION);
        if !is_map || path == own {
            continue;
        }
        if let Ok(Some(other)) = read(&path)
            && other.destination.identity == destination.identity
            && other.to < written.end
            && written.start < other.to.saturating_add(other.length)
        {
            forget(&path);
        }
    }
}

/// Reads a record; `None` if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Record>> {
    let shown = path.display();
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::run(format_args!("cannot read {shown}: {}", os(&error))));
        }
    };
    let sealed: Option<Sealed> = serde_json::from_slice(&text).ok();
    match sealed {
        Some(Sealed { farblock_map: record, seal }) if seal == record.seal() => Ok(Some(record)),
        _ => Err(Failure::run(format_args!(
            "cannot resume: the record {shown} is damaged; remove it to start again"
        ))),
    }
}

fn check(old: &Record, new: &Record, path: &Path) -> Result<()> {
    let (was, is) = (&old.source, &new.source);
    let why = if was != is && was.name != is.name {
        format!("the transfer was started from {}", was.name)
    } else if was.bytes != is.bytes {
        let (had, has) = (FullSize(was.bytes), FullSize(is.bytes));
        format!("{} had {had} then and has {has} now", is.name)
    } else if was.identity != is.identity {
        format!("{} has changed since then, or was replaced", is.name)
    } else if old.destination != new.destination {
        format!("{} is not the same destination as then", new.destination.name)
    } else if (old.from, old.to, old.length) != (new.from, new.to, new.length) {
        "the offset or length was different then".to_owned()
    } else if old.done > old.length {
        "the record exceeds the length of the transfer".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::run(format_args!(
        "cannot resume: {why}; remove {} to start again",
        path.display()
    )))
}

/// Returns the path of the record for a destination that is written in place. The record is in the
/// user's state folder, since a namespace has no folder.
pub(super) fn path_for(destination: &End, to: u64) -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = if cfg!(windows) {
        variable("LOCALAPPDATA").map(PathBuf::from)
    } else {
        variable("XDG_STATE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&variable("HOME")?).join(".local/state")))
    };
    let state = state.ok_or_else(|| {
        Failure::run("--resume has no folder to keep its record in: set XDG_STATE_HOME or HOME")
    })?;
    let name = format!("{}\n{to}", destination.identity);
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
    Ok(state.join("farblock").join(format!("{id}.{EXTENSION}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let end = |name: &str| End { name: name.into(), identity: "x".into(), bytes: 100 };
        Record { source: end("a"), destination: end("b"), from: 0, to: 0, length: 100, done: 0 }
    }

    fn refused(path: &Path, record: Record) -> String {
        match Map::open(path.to_owned(), record) {
            Err(Failure::Run(text)) => text,
            _ => panic!("another transfer resumes"),
        }
    }

    #[test]
    fn a_record_resumes_only_the_same_transfer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("map");
        let mut map = Map::open(path.clone(), record()).unwrap();
        map.reached(60).unwrap();
        map.reached(50).unwrap();
        assert_eq!(Map::open(path.clone(), record()).unwrap().done(), 60);
        let mut other = record();
        other.source.bytes = 101;
        assert!(refused(&path, other).contains("a had 100 bytes then and has 101 bytes now"));
        let mut other = record();
        other.source.identity = "y".into();
        assert!(refused(&path, other).contains("a has changed since"));
        let mut other = record();
        other.destination.identity = "y".into();
        assert!(refused(&path, other).contains("b is not the same destination"));
        assert!(refused(&path, Record { length: 99, ..record() }).contains("length"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("60", "61")).unwrap();
        assert!(refused(&path, record()).contains("damaged"));
        std::fs::write(&path, "").unwrap();
        assert!(refused(&path, record()).contains("damaged"));
    }
}
