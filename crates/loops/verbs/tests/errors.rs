//! Tests that errors of verbs tell the user what to do.

use farblock_verbs::VerbsError;
use std::io::{Error, ErrorKind};

#[test]
fn a_refused_device_folder_names_the_option() {
    let refused = |verb, kind: ErrorKind| VerbsError::Refused { verb, error: Error::from(kind) };
    let said = refused("rdma_create_event_channel", ErrorKind::PermissionDenied).to_string();
    assert!(said.contains("--allow-path /dev/infiniband"), "{said}");
    let said = refused("rdma_create_event_channel", ErrorKind::NotFound).to_string();
    assert!(said.contains("load the driver"), "{said}");
    let said = refused("ibv_reg_mr", ErrorKind::OutOfMemory).to_string();
    assert!(said.contains("ulimit -l"), "{said}");
    let said = refused("rdma_listen", ErrorKind::PermissionDenied).to_string();
    assert!(!said.contains("--allow-path"), "{said}");
}
