//! The interface's description that is in the tree is that of the handlers.
#![cfg(unix)]

use std::path::Path;

#[test]
fn the_description_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/openapi.json");
    let made = farblock_admin::openapi();
    if std::env::var_os("FARBLOCK_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("it is in the tree");
    assert!(
        there == made,
        "make it anew: FARBLOCK_WRITE_OPENAPI=1 cargo test -p farblock-admin --test openapi"
    );
    for part in ["/v1/subsystems/{nqn}/namespaces/{nsid}", "merge patch", "\"Namespace\""] {
        assert!(made.contains(part), "{part}");
    }
}
