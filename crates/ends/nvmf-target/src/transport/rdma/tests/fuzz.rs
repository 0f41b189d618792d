//! A seeded fuzzer of the target over RDMA: hosts that send mutated private data, capsules, SGL
//! descriptors and keys, take no responses, and leave at any time.
//!
//! Each response must be for a command in flight. The I/O of another host (the victim) must always
//! succeed. At the end, the target must have released all registered memory.

use super::host::{ScriptedHost, Stand, request, wait_for};
use super::{HOST, OTHER, assert_works, connected};
use crate::config::Export;
use farblock_backends::mem::Mem;
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_verbs::{ConnParam, Keys, Operation, SendRequest, Verbs};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::rdma::CmRequest;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{SglDescriptor, Sqe};
use std::collections::HashMap;
use std::sync::Arc;

const SEEDS: std::ops::Range<u64> = 0..60;
/// The namespace that the fuzzer uses. The victim uses namespace 1.
const OWN: u32 = 2;
const ENTRIES: u16 = 8;

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; random.below(most + 1) as usize];
    random.fill(&mut bytes);
    bytes
}

/// Returns private data: valid, random, valid but for one byte, or truncated.
fn private_data(random: &mut Random, controller: u16) -> Vec<u8> {
    let mut data = vec![0; CmRequest::LEN];
    CmRequest::new(pick(random, &[0, 1, 2]), ENTRIES, ENTRIES - 1, controller).emit(&mut data);
    match random.below(4) {
        0 => data = random_bytes(random, 56),
        1 => {
            let at = random.below(10) as usize;
            data[at] = random.below(256) as u8;
        }
        2 => data.truncate(random.below(33) as usize),
        _ => {}
    }
    data
}

fn descriptor(random: &mut Random, keys: Keys) -> SglDescriptor {
    // Leave out the memory of this host's responses, which the test reads.
    let offsets = [9 << 20, (9 << 20) + 1, 1 << 40, u64::MAX];
    let lengths = [0, 1, 511, 512, 4096, 8192, 1 << 20, 0xff_ffff];
    let block = KeyedBlock {
        address: keys.address().wrapping_add(pick(random, &offsets)),
        length_bytes: pick(random, &lengths),
        key: keys.rkey() ^ u32::from(random.below(16) == 0),
        invalidate: random.below(16) == 0,
    };
    match random.below(8) {
        0..=3 => SglDescriptor::keyed(block),
        4 | 5 => {
            let offset = pick(random, &[0, 0, 0, 1, 4096, u64::MAX]);
            SglDescriptor::in_capsule(offset, pick(random, &[0, 16, 512, 4096, 4097, u32::MAX]))
        }
        6 if random.below(2) == 0 => {
            let offset = pick(random, &[0, 0, 16, 4080, u64::MAX]);
            SglDescriptor::segment_in_capsule(offset, pick(random, &[0, 1, 16, 256, 272, u32::MAX]))
        }
        6 => SglDescriptor::transport(pick(random, &lengths)),
        _ => SglDescriptor { id: random.below(256) as u8, ..SglDescriptor::keyed(block) },
    }
}

/// A descriptor of a list in the capsule.
fn listed(random: &mut Random, keys: Keys) -> [u8; SglDescriptor::LEN] {
    let mut bytes = [0; SglDescriptor::LEN];
    let length_bytes = pick(random, &[0, 256, 256, 256, 512]);
    let address = keys.address() + (9 << 20);
    let block = KeyedBlock { address, length_bytes, key: keys.rkey(), invalidate: false };
    match random.below(64) {
        0 => descriptor(random, keys),
        _ => SglDescriptor::keyed(block),
    }
    .emit(&mut bytes);
    bytes
}

fn io_command(random: &mut Random, keys: Keys) -> Sqe {
    let opcodes = [
        NvmOpcode::READ,
        NvmOpcode::READ,
        NvmOpcode::WRITE,
        NvmOpcode::WRITE,
        NvmOpcode::FLUSH,
        NvmOpcode::COMPARE,
        NvmOpcode::WRITE_ZEROES,
        NvmOpcode::DATASET_MANAGEMENT,
        NvmOpcode(random.below(256) as u8),
    ];
    let mut sqe = Sqe::zeroed();
    sqe.opcode = pick(random, &opcodes).0;
    // Uses the SGL bits that the specification requires, or any bits.
    sqe.flags = if random.below(8) == 0 { random.below(256) as u8 } else { 1 << 6 };
    sqe.nsid = pick(random, &[OWN, OWN, OWN, 3, 0]).into();
    sqe.dptr = descriptor(random, keys);
    sqe.cdw10 = pick(random, &[0, 1, 100, u32::MAX]).into();
    sqe.cdw11 = pick(random, &[0, 0, 0, u32::MAX]).into();
    sqe.cdw12 = pick(random, &[0, 0, 7, 7, 15, 0xffff, u32::MAX]).into();
    sqe
}

fn admin_command(random: &mut Random, keys: Keys) -> Sqe {
    let opcodes = [
        AdminOpcode::IDENTIFY,
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::ABORT,
        AdminOpcode::FABRICS,
    ];
    let mut sqe = io_command(random, keys);
    sqe.opcode = pick(random, &opcodes).0;
    let [nsid, cdw10] = [(); 2].map(|()| random.below(1 << 32) as u32);
    sqe.nsid = pick(random, &[OWN, 0, u32::MAX, nsid]).into();
    sqe.cdw10 = pick(random, &[0, 1, 2, 3, cdw10]).into();
    sqe
}

/// A host's connection that the fuzzer uses.
struct Attacker {
    host: ScriptedHost,
    /// The number of commands in flight, by identifier.
    sent: HashMap<u16, u32>,
    is_admin: bool,
}

impl Attacker {
    fn new(host: ScriptedHost, is_admin: bool) -> Self {
        Self { host, sent: HashMap::new(), is_admin }
    }

    fn act(&mut self, random: &mut Random) {
        let keys = self.host.keys();
        match random.below(12) {
            0 => {
                // A capsule without a whole entry, or longer than the receive, gets no response.
                let mut bytes = random_bytes(random, 63);
                let is_long = random.below(2) == 0;
                bytes.resize(if is_long { 4200 } else { bytes.len() }, 0xff);
                self.host.send_bytes(&bytes);
            }
            1 => {
                let other = random.below(1 << 32) as u32;
                let key = pick(random, &[0, 1, keys.rkey(), other]);
                let request = SendRequest::new(1 << 32, Operation::SendWithInvalidate(key), &[]);
                let _ = self.host.node.post_send(&self.host.id, &[request]);
            }
            2 => self.host.withhold(random.below(4) as u16),
            _ => {
                let sqe = match self.is_admin {
                    true => admin_command(random, keys),
                    false => io_command(random, keys),
                };
                let data = match random.below(4) {
                    0 => random_bytes(random, 4200),
                    1 => vec![0x17; 4096],
                    2 => (0..16).flat_map(|_| listed(random, keys)).collect(),
                    _ => Vec::new(),
                };
                let cid = self.host.send_capsule(sqe, &data);
                *self.sent.entry(cid).or_default() += 1;
            }
        }
        self.check();
    }

    fn check(&mut self) {
        while let Some(answer) = self.host.try_answer() {
            let Some(left) = self.sent.get_mut(&answer.cid) else {
                panic!("a response to no command: {answer:?}");
            };
            *left = left.checked_sub(1).expect("one response to each command");
        }
    }
}

fn round(stand: &Stand, seed: u64) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let (admin, controller) = ScriptedHost::admin(stand, HOST);
    let stranger = request(stand, HOST, ENTRIES);
    let param = ConnParam {
        private_data: private_data(&mut random, controller),
        responder_resources: pick(&mut random, &[0, 1, 16, 255]),
        initiator_depth: pick(&mut random, &[0, 1, 255]),
        ..ConnParam::default()
    };
    let mut attackers = vec![Attacker::new(admin, true)];
    if stranger.try_connect(param) {
        attackers.push(Attacker::new(stranger, false));
    }
    let io = ScriptedHost::io_of(stand, HOST, (controller, 3), ENTRIES);
    attackers.push(Attacker::new(io, false));
    for _ in 0..30 {
        let at = random.below(attackers.len() as u64) as usize;
        attackers[at].act(&mut random);
        if attackers[at].host.failed.is_some() {
            attackers.swap_remove(at);
        }
        if attackers.is_empty() {
            break;
        }
    }
}

#[test]
fn random_hosts_harm_no_other_host_and_leave_no_memory() {
    let stand = Stand::with(|config| {
        let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
        let export = Export { namespace, identity: "fuzzed".to_owned() };
        config.subsystems[0].exports.insert(NamespaceId(OWN), export);
    });
    let (victim_admin, mut victim) = connected(&stand, OTHER, 8);
    let seeds = match std::env::var("FARBLOCK_SEED").ok().and_then(|it| it.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => SEEDS,
    };
    for seed in seeds {
        round(&stand, seed);
        assert_works(&mut victim, seed as u8);
        stand.expect_connections(2);
    }
    drop((victim_admin, victim));
    stand.expect_connections(0);
    let network = stand.network.clone();
    wait_for("the return of memory", || (network.registered_bytes() == 0).then_some(()));
}
