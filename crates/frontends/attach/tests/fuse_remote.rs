//! Tests the main use of a FUSE mount: a file system on a remote disk, with a real target and host.
#![cfg(target_os = "linux")]

mod fuse_support;

use farblock_attach::fuse::loop_device;
use farblock_block::Namespace;
use farblock_host::{Controller, Options};
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use fuse_support::{ENGINES, Loop, MountedFs, Served, disk, fio_verify, run};
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const NQN: &str = "nqn.2026-11.org.farblock:fuse";

/// Starts a target with a disk in 4096-byte blocks, and connects a host to it.
fn remote(engine: EngineKind, namespace: Arc<dyn Namespace>) -> (Target, Controller) {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace, identity: "mem".to_owned() };
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
fn a_file_system_works_on_a_remote_disk() {
    for engine in ENGINES {
        let far = disk("mem:96MiB", 4096);
        let data = Random::new(4).bytes(10 << 20);
        // Attach the disk twice, over separate connections. The second round reads what the first
        // wrote.
        for round in 0..2 {
            let (target, controller) = remote(engine, Arc::clone(&far));
            let namespace = controller.namespace(1).expect("namespace 1 exists");
            let served = Served::new(engine, Arc::new(namespace));
            let device = Loop::new(served.path(), 4096, false);
            if round == 0 {
                run("mkfs.ext4", &["-q", device.name()]);
            }
            let mounted = MountedFs::new(device.name(), "discard");
            if round == 0 {
                fs::write(mounted.file("data"), &data).expect("the write succeeds");
                for arguments in [
                    ["--ioengine=libaio", "--direct=1", "--iodepth=32", "--rw=randrw", "--bs=4k"],
                    ["--ioengine=libaio", "--direct=1", "--iodepth=4", "--rw=write", "--bs=1m"],
                ] {
                    let mut all = arguments.to_vec();
                    all.extend(["--size=16m", "--allow_file_create=1"]);
                    fio_verify(&mounted.file("fio"), &all);
                }
                fs::remove_file(mounted.file("fio")).expect("the file is removed");
                run("fstrim", &[&mounted.file("")]);
            } else {
                assert!(fs::read(mounted.file("data")).expect("the file exists") == data);
            }
            mounted.unmount();
            run("fsck.ext4", &["-fn", device.name()]);
            loop_device::detach(&device.0, false).expect("no process uses the device");
            served.stop();
            drop(controller);
            target.stop().expect("the target stops");
        }
    }
}

/// The target disconnects and does not come back. Programs get errors instead of waiting, and the
/// server can stop.
#[test]
fn programs_get_errors_when_the_remote_disk_is_lost() {
    for engine in ENGINES {
        let (target, controller) = remote(engine, disk("mem:32MiB", 4096));
        let namespace = controller.namespace(1).expect("namespace 1 exists");
        let served = Served::new(engine, Arc::new(namespace));
        let file = fs::File::options().read(true).write(true).open(served.path());
        let file = file.expect("the file opens");
        file.write_all_at(&[7; 100], 100).expect("the write succeeds");
        drop(target);
        // Each attempt must fail soon.
        for _ in 0..3 {
            assert!(file.write_at(&[1; 4096], 0).is_err());
            assert!(file.write_at(&[1; 5], 5).is_err());
            assert!(file.read_at(&mut [0; 4096], 0).is_err());
            assert!(file.sync_all().is_err());
        }
        drop(file);
        served.stop();
    }
}
