//! Names that are no NQNs are served, found and used like others.

use farblock_backends::mem::Mem;
use farblock_host::{Controller, Options, discover};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, StartError, Subsystem, Target, TargetConfig};
use std::sync::Arc;

fn serve(name: &str) -> Result<Target, StartError> {
    let mut subsystem = Subsystem::new(name);
    subsystem.config.allowed_hosts = vec!["me".to_owned()];
    let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        ..TargetConfig::default()
    })
}

#[test]
fn a_name_that_does_not_claim_to_be_an_nqn() {
    /// What blktests calls it.
    const NAME: &str = "blktests-subsystem-1";
    let target = serve(NAME).expect("it is served");
    let address = target.addresses()[0].to_string();
    let options = Options { hostnqn: Some("me".to_owned()), ..Options::default() };
    let found = discover(&address, &options).expect("a discovery log page");
    assert!(found.iter().any(|entry| entry.subnqn == NAME), "{found:?}");
    let controller = Controller::connect(&address, NAME, &options).expect("connected");
    assert_eq!(controller.namespace(1).expect("a namespace").info().blocks, 2048);
    let stranger = Options { hostnqn: Some("nobody".to_owned()), ..options };
    assert!(Controller::connect(&address, NAME, &stranger).is_err());
}

#[test]
fn one_that_claims_to_be_and_is_not() {
    assert!(matches!(serve("nqn.disks"), Err(StartError::Subsystem(..))));
}
