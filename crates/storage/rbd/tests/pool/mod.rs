//! Helpers for images of the cluster under test.

#![allow(dead_code, reason = "no test uses all helpers")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farblock_block::Namespace;
use farblock_rbd::{Image, Name, OpenError, Rbd};

pub(crate) fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect(program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn rbd(words: &[&str]) -> String {
    run("rbd", words)
}

/// Creates an unused image and returns its name in the pool.
pub(crate) fn fresh(bytes: u64, features: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rbd/test-{}-{next}", std::process::id());
    rbd(&["create", &name, "--size", &format!("{bytes}B"), "--image-feature", features]);
    name
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("the name is valid")
}

pub(crate) fn open(text: &str, block_size: u32, read_only: bool) -> Result<Rbd, OpenError> {
    Rbd::new(Image::open(&name(text))?, block_size, read_only)
}

pub(crate) fn shared(text: &str, block_size: u32) -> Arc<dyn Namespace> {
    Arc::new(open(text, block_size, false).expect("the image opens"))
}

/// Returns the number of objects that an image uses.
pub(crate) fn used(image: &str) -> usize {
    rbd(&["diff", image, "--format", "json"]).matches("\"exists\":\"true\"").count()
}
