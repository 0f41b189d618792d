//! Tests of the states that hosts can see during a change.

use crate::legs::{Legs, Mirrored};
use crate::opener::{NotOpened, Open, Opened};
use crate::steering::Reread;
use crate::trial::{Opener, start};
use farblock_admin_api::{LegStatus, MirrorOrder, MirrorStatus};
use farblock_state::{Document, Host, Limits, Namespace};
use farblock_target::{Event, HostKeys, Observer};
use std::sync::{Arc, Mutex};

const NQN: &str = "nqn.2026-11.org.farblock:whole";

fn with(document: &Document, namespace: &Namespace) -> Document {
    let mut document = document.clone();
    let subsystem = document.subsystems.entry(NQN.to_owned()).or_default();
    subsystem.namespaces.insert(1, namespace.clone());
    document
}

/// The target never shares the namespace with other settings than requested: never writable,
/// larger, visible to other hosts, or without limits.
#[test]
fn a_namespace_is_added_and_changed_atomically() {
    let (_target, steering) = start(std::sync::Arc::new(Opener));
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let observer: Observer = Arc::new(move |event: &Event| {
        if let Event::NamespaceAdded(..) | Event::NamespaceChanged { .. } = event {
            heard.lock().unwrap().push(event.clone());
        }
    });
    steering.observe(Some(observer));
    let limits = Limits { write_iops: Some(1), ..Limits::default() };
    let visible_to = Some(["nqn.2026-11.org.farblock:one".to_owned()].into());
    let usual = Namespace::new("mem:1M");
    let guarded =
        Namespace { read_only: true, size: Some(4096), limits, visible_to, ..usual.clone() };
    let make = |namespace: &Namespace| {
        let done =
            steering.change(None, &Reread::Nothing, |document| Ok(with(document, namespace)));
        done.unwrap();
        std::mem::take(&mut *told.lock().unwrap())
    };
    let came = make(&guarded);
    assert!(matches!(came[..], [Event::NamespaceAdded(_, 1)]), "{came:?}");
    let changed = make(&usual);
    let now = |event: &Event| match event {
        Event::NamespaceChanged { bytes, read_only, .. } => Some((*bytes, *read_only)),
        _ => None,
    };
    assert_eq!(changed.iter().map(now).collect::<Vec<_>>(), [Some((1 << 20, false))]);
    let back = make(&guarded);
    assert_eq!(back.iter().map(now).collect::<Vec<_>>(), [Some((4096, true))]);
}

/// A mirror that records the copy speeds that it gets.
#[derive(Default)]
struct Copies(Mutex<Vec<Option<u64>>>);

impl Mirrored for Copies {
    fn status(&self) -> Option<(Vec<LegStatus>, Option<MirrorStatus>)> {
        None
    }

    fn order(&self, order: &MirrorOrder) {
        self.0.lock().unwrap().push(order.copy_bytes_per_second);
    }
}

struct Mirrors(Arc<Copies>);

impl Open for Mirrors {
    fn open(&self, namespace: &Namespace) -> Result<Opened, NotOpened> {
        let legs: Option<Legs> = Some(Arc::clone(&self.0) as _);
        Ok(Opened { legs, ..Opener.open(namespace)? })
    }

    fn keys(&self, nqn: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
        Opener.keys(nqn, name, host)
    }
}

/// A mirror copies at the speed in the document from the start and after each change of that speed.
/// Other changes do not overwrite a speed that was set at run time.
#[test]
fn a_mirror_copies_at_the_speed_in_the_document() {
    let copies = Arc::new(Copies::default());
    let (_target, steering) = start(Arc::new(Mirrors(Arc::clone(&copies))));
    let make = |speed: Option<u64>, ana_group: u32| {
        let usual = Namespace::new("mirror:a,b");
        let namespace = Namespace { copy_bytes_per_second: speed, ana_group, ..usual };
        let done =
            steering.change(None, &Reread::Nothing, |document| Ok(with(document, &namespace)));
        done.map(|_| std::mem::take(&mut *copies.0.lock().unwrap()))
    };
    assert_eq!(make(Some(1000), 1).unwrap(), [Some(1000)]);
    assert_eq!(make(Some(1000), 2).unwrap(), []);
    assert_eq!(make(Some(3000), 2).unwrap(), [Some(3000)]);
    assert_eq!(make(None, 2).unwrap(), [Some(0)]);
    assert!(make(Some(0), 2).unwrap_err().to_string().contains("never fills a leg"));
    assert_eq!(make(None, 3).unwrap(), []);
}
