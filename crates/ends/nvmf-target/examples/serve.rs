//! The smallest target: one RAM disk on one port. It runs until the process is killed.
//!
//! `cargo run --release -p farblock-target --example serve -- 127.0.0.1:4420 512`

use farblock_backends::mem::Mem;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:4420".to_owned());
    let block_size = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let mut subsystem = Subsystem::new("nqn.2026-11.org.farblock:example");
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(block_size, 256 << 20)?);
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity: "example".to_owned() });
    let target = Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![listen.parse()?],
        ..TargetConfig::default()
    })?;
    println!("listening on {} ({} engine)", target.addresses()[0], target.engine());
    loop {
        std::thread::park();
    }
}
