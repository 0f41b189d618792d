//! A subsystem may have a name that is not an NQN. Target, discovery and host use it like an NQN.

use farblock_backends::mem::Mem;
use farblock_host::{Controller, Options, discover, discover_all, entry_address};
use farblock_proto::controller::{AddressFamily, Referral};
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
fn a_subsystem_name_without_the_nqn_prefix_is_served() {
    const NAME: &str = "blktests-subsystem-1";
    let target = serve(NAME).expect("the target starts");
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
fn a_malformed_nqn_is_refused() {
    assert!(matches!(serve("nqn.disks"), Err(StartError::Subsystem(..))));
}

/// The host follows each referral once, in any topology. Here the referrals form a ring, with an
/// exit to a service that does not respond.
#[test]
fn discovery_follows_each_referral_once() {
    let (one, two) =
        (serve("one").expect("the target starts"), serve("two").expect("the target starts"));
    let refer = |from: &Target, to: &str| {
        let (address, service) = to.split_once(':').expect("a port");
        let (family, address) = (AddressFamily::V4, address.to_owned());
        let referral = Referral { family, address, service: service.to_owned() };
        from.control().add_referral(&referral).expect("a new referral");
    };
    let [at_one, at_two] = [&one, &two].map(|target| target.addresses()[0].to_string());
    refer(&one, &at_two);
    refer(&one, &at_one);
    refer(&two, &at_one);
    refer(&two, "127.0.0.1:1");
    let options = Options { hostnqn: Some("me".to_owned()), ..Options::default() };
    let found = discover_all(&at_one, &options).expect("the first target answers");
    let of = |name: &str| found.iter().filter(|entry| entry.subnqn == name).count();
    assert_eq!((of("one"), of("two")), (1, 1), "{found:?}");
    let referrals: Vec<_> = found.iter().filter(|it| it.is_referral()).map(entry_address).collect();
    assert_eq!(referrals, ["127.0.0.1:1"]);
}
