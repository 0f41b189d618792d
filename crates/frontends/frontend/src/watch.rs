//! How a server hears that the disk which it serves has changed.

use crate::Disk;
use farblock_block::{Change, Geometry, Watch};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Watches a disk's geometry (its size, whether it can be written) for a server, until it is
/// dropped.
///
/// The server is told on a thread of its own, so that it may wait for a kernel or a client while it
/// passes that on. A namespace that never tells of changes costs no thread. That a namespace is
/// gone is nothing to be told of: its operations say so.
#[derive(Debug)]
pub struct GeometryWatch {
    watch: Option<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl GeometryWatch {
    /// Calls `changed` when the geometry is another one than it was before; to begin with, than
    /// `known`, which is what the server began with.
    #[must_use = "nothing is watched when it is dropped"]
    pub fn start(
        thread_name: &'static str,
        disk: &Disk,
        known: Geometry,
        changed: impl FnMut() + Send + 'static,
    ) -> GeometryWatch {
        let Some(changes) = disk.namespace().changes() else {
            return GeometryWatch { watch: None, thread: None };
        };
        let (sender, told) = mpsc::channel();
        let watch = changes.watch(move |change| {
            if change == Change::Geometry {
                // Its thread has ended only if there is none.
                let _ = sender.send(());
            }
        });
        let disk = disk.clone();
        let look = move || run(&disk, known, &told, changed);
        match thread::Builder::new().name(thread_name.to_owned()).spawn(look) {
            Ok(thread) => GeometryWatch { watch: Some(watch), thread: Some(thread) },
            Err(error) => {
                tracing::error!("the disk's users will not hear of another size of it: {error}");
                GeometryWatch { watch: None, thread: None }
            }
        }
    }
}

fn run(disk: &Disk, mut known: Geometry, told: &mpsc::Receiver<()>, mut changed: impl FnMut()) {
    loop {
        let now = disk.geometry();
        if now != known {
            known = now;
            changed();
        }
        if told.recv().is_err() {
            return;
        }
        // One look is enough for all of them.
        while told.try_recv().is_ok() {}
    }
}

impl Drop for GeometryWatch {
    fn drop(&mut self) {
        // The thread ends with what it is told by.
        self.watch = None;
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_backends::Spec;
    use farblock_block::Namespace;
    use farblock_block::testing::Elastic;
    use std::sync::Arc;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn what_differs_is_told_once_and_also_what_happened_meanwhile() {
        let inner = Spec::parse("mem:1MiB").expect("a spec").open(512, false).expect("it opens");
        let namespace = Elastic::new(inner);
        namespace.resize_silently(8);
        let changes = namespace.changes().expect("it tells of them");
        let disk = Disk::new(Arc::clone(&namespace) as _, true);
        let known = disk.geometry();
        namespace.resize_silently(9);
        let (sender, heard) = mpsc::channel();
        let seen = disk.clone();
        let watch = GeometryWatch::start("test-changes", &disk, known, move || {
            let _ = sender.send(seen.geometry().blocks);
        });
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(9), "it was other before anybody watched");
        // Neither is a change of what is watched.
        changes.tell(Change::Availability);
        changes.tell(Change::Geometry);
        namespace.resize(10);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(10));
        drop(watch);
        namespace.resize(11);
        assert!(heard.recv().is_err(), "it is told after the end, or twice of the same");
        assert!(!changes.is_watched());
    }
}
