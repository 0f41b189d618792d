//! What hosts can see of a change while it is made.

use crate::steering::Reread;
use crate::trial::{Opener, start};
use farblock_state::{Document, Limits, Namespace};
use farblock_target::{Event, Observer};
use std::sync::{Arc, Mutex};

const NQN: &str = "nqn.2026-11.org.farblock:whole";

fn with(document: &Document, namespace: &Namespace) -> Document {
    let mut document = document.clone();
    let subsystem = document.subsystems.entry(NQN.to_owned()).or_default();
    subsystem.namespaces.insert(1, namespace.clone());
    document
}

/// It is never shared as something else than it is to be: neither writable, nor larger, nor for
/// others, nor without limits.
#[test]
fn a_namespace_comes_and_changes_as_a_whole() {
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
