//! Tests the main use of the iSCSI target: a remote disk, with a real NVMe target and host.

mod support;

use farblock_host::{Controller, Options};
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::sync::Arc;
use support::*;

const NQN: &str = "nqn.2026-11.org.farblock:iscsi";

/// Starts an NVMe target with 32 MiB in 4096-byte blocks, and connects a host to it.
fn remote(engine: EngineKind) -> (Target, Controller) {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace: disk("mem:32MiB", 4096), identity: "mem".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![([127, 0, 0, 1], 0).into()],
        engine,
        ..TargetConfig::default()
    };
    let target = Target::start(&config).expect("the target starts");
    let address = target.addresses()[0].to_string();
    let options = Options { engine, ..Options::default() };
    let controller = Controller::connect(&address, NQN, &options).expect("the host connects");
    (target, controller)
}

#[test]
fn every_operation_works_on_a_remote_disk() {
    for &engine in ENGINES {
        let (target, controller) = remote(engine);
        let server = serve(engine, Arc::new(controller.namespace(1).expect("namespace 1 exists")));
        let fast = Wishes { initial_r2t: false, max_r2t: 8, ..Wishes::default() };
        let mut writer = Client::new(&server, &fast);
        let mut reader = Client::new(&server, &Wishes { isid: [2; 6], ..fast });
        let mut random = Random::new(11);
        let mut model = random.bytes(32 << 20);
        assert_eq!(writer.write(0, &model, 4096).status, 0, "the write succeeds");
        for _ in 0..100 {
            let blocks = 1 + random.below(40);
            let lba = random.below(8192 - blocks);
            let range = lba as usize * 4096..(lba + blocks) as usize * 4096;
            if random.below(3) == 0 {
                let fill = cdb16(0x93, 1, lba, blocks as u32);
                assert_eq!(writer.call(&fill, 0, 0, &[]).status, 0);
                model[range].fill(0);
            } else {
                let data = random.bytes(range.len());
                assert_eq!(writer.write(lba, &data, 4096).status, 0);
                model[range].copy_from_slice(&data);
            }
        }
        assert_eq!(writer.call(&[0x35], 0, 0, &[]).status, 0);
        assert!(reader.read(0, 8192, 4096) == model);
        server.stop(true).expect("the server stops");
        drop(controller);
        target.stop().expect("the target stops");
    }
}

/// The NVMe target disconnects while commands are in flight. The logical unit then reports that it
/// is not ready, and the iSCSI target continues.
#[test]
fn the_unit_is_not_ready_when_the_remote_disk_is_lost() {
    for &engine in ENGINES {
        let (target, controller) = remote(engine);
        let server = serve(engine, Arc::new(controller.namespace(1).expect("namespace 1 exists")));
        let wishes = Wishes { receive_bytes: 262_144, ..Wishes::default() };
        let mut client = Client::new(&server, &wishes);
        assert_eq!(client.write(0, &[7; 4096], 4096).status, 0);
        let mut waiting = 0;
        for number in 0..33_u64 {
            let (opcode, flags) = if number % 3 == 0 { (0x88, READ) } else { (0x8a, WRITE) };
            let data = if flags == WRITE { vec![1; 32_768] } else { Vec::new() };
            client.command(&cdb16(opcode, 0, number * 8, 8), flags | FINAL, 32_768, &data);
            waiting += 1;
        }
        drop(target);
        while waiting > 0 {
            let pdu = client.take();
            match pdu.opcode() {
                0x25 => waiting -= i32::from(pdu.bhs[1] & 1 != 0),
                0x21 if pdu.bhs[3] == 0 => waiting -= 1,
                0x21 => {
                    // The command fails with "not ready", or with "aborted" from the NVMe
                    // controller that shuts down.
                    let sense = (pdu.data[4], pdu.data[14], pdu.data[15]);
                    assert!([(2, 4, 1), (11, 0, 0)].contains(&sense), "{sense:?}");
                    waiting -= 1;
                }
                other => panic!("{other:#x}"),
            }
        }
        let read = client.call(&cdb16(0x88, 0, 0, 1), READ, 4096, &[]);
        assert_eq!(read.sense, Some(NOT_READY));
        assert_eq!(client.write(0, &[1; 4096], 4096).sense, Some(NOT_READY));
        assert_eq!(client.call(&[0x35], 0, 0, &[]).sense, Some(NOT_READY));
        assert_eq!(
            client.call(&[0; 6], 0, 0, &[]).sense,
            Some(NOT_READY),
            "TEST UNIT READY reports no error"
        );
        assert_eq!(
            client.call(&[0x12, 0, 0, 0, 96, 0], READ, 96, &[]).status,
            0,
            "INQUIRY fails on a unit that is not ready"
        );
        server.stop(true).expect("the server stops");
    }
}
