//! Runs the example over a scripted target.

#[allow(dead_code, reason = "an example has a main, too")]
#[path = "../examples/three_ways.rs"]
mod example;
mod peer;

use peer::{Peer, SUBSYSTEM, Script};

#[test]
fn the_example_uses_a_disk_in_three_ways() {
    let peer = Peer::new(Script::default());
    let url = format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address());
    example::use_disk(&[url.parse().expect("a URL")]).expect("the example works");
}

#[test]
fn the_library_guide_has_an_example_for_each_way() {
    // This test only checks the text. rustdoc compiles the code; see the end of the crate's lib.rs.
    let guide = include_str!("../../../../docs/library.md");
    assert!(guide.matches("```rust,no_run").count() >= 3, "an example of each interface");
}
