//! A small plan, and listening agents.
#![allow(dead_code, reason = "no test uses all helpers")]
#![allow(unreachable_pub, reason = "a module of each test file")]

use farblock_bench::Cancel;
use farblock_fleet::{
    Allowed, Board, FleetError, FleetTimeouts, Launcher, Listener, Memory, Place, Plan, Report,
    Secret, Setting, run,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

pub const TOKEN: &str = "0123456789abcdef";

pub fn secret(text: &str) -> Secret {
    Secret::new(text).expect("the token is valid")
}

pub fn listener() -> SocketAddr {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let allowed = Allowed::Only(Vec::new());
    Listener::start(any, secret(TOKEN), allowed, Memory::limited(1 << 30))
        .expect("a port")
        .address()
}

pub fn place(name: &str, address: SocketAddr, serves: bool) -> Place {
    Place {
        name: name.to_owned(),
        address: address.to_string(),
        token_file: "token".to_owned(),
        serves_at: serves.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
    }
}

/// A plan of two hosts, and of a target with two drives.
pub fn plan(target: SocketAddr) -> Plan {
    let text = "drives_per_target = 2\ndrive = \"mem:8MiB\"\nclients_per_node = 2\nramp_seconds = \
                0.1\nruntime_seconds = 0.8\nruns = 2\nalone_seconds = 0.5\n[[actions]]\nload = \
                \"randrw,bs=4k,iodepth=4,numjobs=1,rwmixread=70\"";
    let mut plan = Plan::parse("two", text).expect("the plan is valid");
    plan.agents = vec![
        place("storage", target, true),
        place("left", listener(), false),
        place("right", listener(), false),
    ];
    plan
}

pub fn carry_out(plan: &Plan, token: &str) -> Result<Report, FleetError> {
    carry_out_with(plan, token, FleetTimeouts::default())
}

pub fn carry_out_with(
    plan: &Plan,
    token: &str,
    patience: FleetTimeouts,
) -> Result<Report, FleetError> {
    let folder = tempfile::tempdir().expect("the folder is created");
    let setting = Setting {
        board: Board::default(),
        guests: None,
        launcher: Launcher { program: "false".into(), args: Vec::new() },
        has_network: false,
        folder: folder.path().to_path_buf(),
        secrets: BTreeMap::from([("token".to_owned(), secret(token))]),
        patience,
        cancel: Cancel::new(),
        progress: &mut |_| {},
    };
    run(plan, setting)
}
