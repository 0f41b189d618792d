//! Notifies a server when its disk's geometry changes.

use crate::Disk;
use farblock_block::{Change, Geometry, Watch};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Watches a disk's geometry (size, block size, abilities) for a server. Dropping this value stops
/// the watch.
///
/// The watch calls the server's callback on its own thread, so the callback may wait for the kernel
/// or a client. A namespace that never changes needs no thread. The watch does not report that a
/// namespace is unreachable: operations then fail or wait.
#[derive(Debug)]
pub struct GeometryWatch {
    watch: Option<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl GeometryWatch {
    /// Starts the watch, which calls `changed` whenever the geometry has changed. `known` is the
    /// geometry that the server knows: a difference at the start also counts as a change.
    #[must_use = "dropping this ends the watch"]
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
                // Fails only if the thread does not exist.
                let _ = sender.send(());
            }
        });
        let disk = disk.clone();
        let look = move || run(&disk, known, &told, changed);
        match thread::Builder::new().name(thread_name.to_owned()).spawn(look) {
            Ok(thread) => GeometryWatch { watch: Some(watch), thread: Some(thread) },
            Err(error) => {
                tracing::error!("cannot notify the disk's users of a changed size: {error}");
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
        // The comparison below covers all notifications that have arrived.
        while told.try_recv().is_ok() {}
    }
}

impl Drop for GeometryWatch {
    fn drop(&mut self) {
        // Dropping the sender makes the thread exit.
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

    const WAIT_LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_change_is_reported_once_even_if_it_precedes_the_watch() {
        let inner =
            Spec::parse("mem:1MiB").expect("a spec").open(512, false).expect("the disk opens");
        let namespace = Elastic::new(inner);
        namespace.resize_silently(8);
        let changes = namespace.changes().expect("the namespace reports changes");
        let disk = Disk::new(Arc::clone(&namespace) as _, true);
        let known = disk.geometry();
        namespace.resize_silently(9);
        let (sender, heard) = mpsc::channel();
        let seen = disk.clone();
        let watch = GeometryWatch::start("test-changes", &disk, known, move || {
            let _ = sender.send(seen.geometry().blocks);
        });
        assert_eq!(heard.recv_timeout(WAIT_LIMIT), Ok(9), "a change before the watch is lost");
        // The watch does not report a change of availability.
        changes.tell(Change::Availability);
        changes.tell(Change::Geometry);
        namespace.resize(10);
        assert_eq!(heard.recv_timeout(WAIT_LIMIT), Ok(10));
        drop(watch);
        namespace.resize(11);
        assert!(heard.recv().is_err(), "a change was reported twice, or after the end");
        assert!(!changes.is_watched());
    }
}
