//! Tests with images of a real cluster. `interop/ceph/test.sh` starts a cluster with the pool
//! `rbd`, sets `CEPH_CONF` to its configuration, and runs these tests.

#![cfg(target_os = "linux")]

mod pool;

use std::sync::Arc;

use farblock_block::blocking::Blocking;
use farblock_block::conformance::{Driver, Growing, MIN_BYTES, Suite};
use farblock_block::{BlockError, Namespace, Op};
use farblock_rbd::{Image, OpenError};
use farblock_reactor::{Buffer, EngineKind};
use pool::{fresh, name, open, rbd, run, shared, used};

const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_conforms() {
    let make = |block_size| shared(&fresh(MIN_BYTES, "layering"), block_size);
    Suite::new(EngineKind::Auto).run(&make);
}

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_with_an_exclusive_lock_conforms() {
    let features = "layering,exclusive-lock,object-map,fast-diff";
    let make = |block_size| shared(&fresh(MIN_BYTES, features), block_size);
    Suite::new(EngineKind::Auto).block_sizes(&[4096]).run(&make);
}

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_reports_its_growth() {
    Suite::new(EngineKind::Auto).run_growing(&|block_size| {
        let image = fresh(MIN_BYTES, "layering");
        let namespace = shared(&image, block_size);
        let grow = move |blocks: u64| {
            let bytes = format!("{}B", blocks * u64::from(block_size));
            rbd(&["resize", &image, "--size", &bytes, "--no-progress"]);
        };
        Growing { namespace, grow: Box::new(grow) }
    });
}

/// Ceph allows an image to grow beyond the largest namespace.
#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_of_any_size_opens() {
    let image = fresh(MIN_BYTES, "layering");
    // `rbd resize` counts a size without a unit in MiB. With a unit, the size in bytes would have
    // to fit in an i64.
    let mebibytes = (9_u64 << 40).to_string();
    rbd(&["resize", &image, "--size", &mebibytes, "--no-progress"]);
    for block_size in [512, 4096, 65536] {
        let geometry = open(&image, block_size, false).expect("the image opens").geometry();
        assert_eq!(geometry.capacity_bytes(), farblock_rbd::limits::IMAGE_BYTES);
    }
}

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn a_snapshot_is_read_only_and_does_not_change() {
    let image = fresh(MIN_BYTES, "layering");
    let mut head = Blocking::new(&*shared(&image, 512)).expect("the queue opens");
    head.write(0, &[1; 8192]).expect("the write succeeds");
    rbd(&["snap", "create", &format!("{image}@one"), "--no-progress"]);
    head.write(0, &[2; 8192]).expect("the write succeeds");
    let snapshot = format!("{image}@one");
    assert!(matches!(open(&snapshot, 512, false), Err(OpenError::ReadOnly(_))));
    let make =
        |block_size| Arc::new(open(&snapshot, block_size, true).expect("the image opens")) as _;
    Suite::new(EngineKind::Auto).run_read_only(&make);
    let mut data = [0; 8192];
    Blocking::new(&*make(512))
        .expect("the queue opens")
        .read(0, &mut data)
        .expect("the read succeeds");
    assert!(data == [1; 8192], "the snapshot changed with the image");
    assert_ne!(
        farblock_rbd::identity(&name(&image)),
        open(&snapshot, 512, true).ok().and_then(|_open| farblock_rbd::identity(&name(&snapshot)))
    );
    let writable =
        Arc::new(open(&image, 512, true).expect("the image opens")) as Arc<dyn Namespace>;
    let mut driver = Driver::with(&writable, EngineKind::Auto);
    driver.must_fail(0, Op::write(0, 1, Buffer::new(512), 0), BlockError::ReadOnly);
}

/// Each client immediately reads the other client's writes, because clients have no cache.
#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn two_clients_see_each_others_writes() {
    let image = fresh(MIN_BYTES, "layering");
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF is set");
    let other = shared(&format!("{image}?conf={conf}"), 512);
    let (mut one, mut other) = (
        Blocking::new(&*shared(&image, 512)).expect("the queue opens"),
        Blocking::new(&*other).expect("the queue opens"),
    );
    let mut data = [0; 4096];
    for round in 1..20 {
        one.write(8, &[round; 4096]).expect("the write succeeds");
        other.read(8, &mut data).expect("the read succeeds");
        assert!(data == [round; 4096], "round {round}");
        std::mem::swap(&mut one, &mut other);
    }
}

/// Settings that the cluster stores override a client's own settings. A cache would hide writes
/// from the other target. The writes would be lost if this target failed.
#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_with_a_client_cache_is_refused() {
    let image = fresh(MIN_BYTES, "layering");
    rbd(&["config", "image", "set", &image, "rbd_cache", "true"]);
    let error = open(&image, 512, false).err().expect("the image cannot be opened").to_string();
    let step = format!("rbd config image set {image} rbd_cache false");
    assert!(error.contains(&step), "{error}");
    rbd(&["config", "image", "set", &image, "rbd_cache", "false"]);
    open(&image, 512, false).expect("the image opens");
}

/// The open also reads the settings stored for the image, which needs no further rights.
#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn a_user_with_read_rights_opens_an_image_read_only() {
    let image = fresh(MIN_BYTES, "layering");
    let keyring = std::env::temp_dir().join(format!("farblock-reader-{}", std::process::id()));
    let (keyring, caps) = (keyring.display().to_string(), "profile rbd-read-only");
    let words = ["auth", "get-or-create", "client.reader", "mon", "profile rbd", "osd", caps];
    run("ceph", &[&words[..], &["-o", &keyring]].concat());
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF is set");
    let text = std::fs::read_to_string(&conf).expect("the configuration is readable");
    let own = format!("{keyring}.conf");
    let folder = conf.strip_suffix("/ceph.conf").expect("the path has a folder");
    let text =
        text.replace(&format!("keyring = {folder}/keyring"), &format!("keyring = {keyring}"));
    std::fs::write(&own, text).expect("the file is written");
    let reader = format!("{image}?conf={own}&id=reader");
    assert!(matches!(open(&reader, 512, false), Err(OpenError::ReadOnly(_))));
    assert!(open(&reader, 512, true).is_ok());
    [keyring, own].iter().for_each(|path| std::fs::remove_file(path).expect("the file is removed"));
}

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn deallocated_blocks_use_no_space_in_the_cluster() {
    let image = fresh(MIN_BYTES, "layering");
    let mut disk = Blocking::new(&*shared(&image, 512)).expect("the queue opens");
    disk.write(0, &vec![7; (8 * MIB) as usize]).expect("the write succeeds");
    assert_eq!(used(&image), 2, "the number of objects after a write of 8 MiB");
    disk.write_zeroes(0, (4 * MIB / 512) as u32, false).expect("write zeroes succeeds");
    assert_eq!(used(&image), 2, "write zeroes freed an object");
    disk.deallocate(0, (4 * MIB / 512) as u32).expect("deallocate succeeds");
    disk.write_zeroes(4 * MIB / 512, (4 * MIB / 512) as u32, true).expect("write zeroes succeeds");
    assert_eq!(used(&image), 0);
}

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_that_does_not_open_reports_the_reason() {
    let image = fresh(MIB, "layering");
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF is set");
    run("ceph", &["auth", "get-or-create", "client.nobody", "mon", "allow r", "-o", "/dev/null"]);
    let keyring = run("ceph", &["auth", "get", "client.nobody"]);
    let wrong = std::env::temp_dir().join(format!("farblock-ceph-{}", std::process::id()));
    std::fs::create_dir_all(&wrong).expect("the folder is created");
    let text = std::fs::read_to_string(&conf).expect("the configuration is readable");
    let write = |file: &str, text: &str| {
        let path = wrong.join(file);
        std::fs::write(&path, text).expect("the file is written");
        path.display().to_string()
    };
    let keyring = write("keyring", &keyring);
    let ours = format!(
        "keyring = {}/keyring",
        conf.strip_suffix("/ceph.conf").expect("the path has a folder")
    );
    let weak = write("weak.conf", &text.replace(&ours, &format!("keyring = {keyring}")));
    let mon = text
        .lines()
        .find(|line| line.starts_with("mon host"))
        .expect("the configuration names a monitor");
    let away = write("away.conf", &text.replace(mon, "mon host = v2:127.0.0.1:1"));
    for (text, words) in [
        ("rbd/none".to_owned(), "the image does not exist"),
        (format!("{image}@none"), "the snapshot does not exist"),
        ("none/image".to_owned(), "no pool none"),
        (format!("{image}?id=stranger"), "client.stranger"),
        (format!("{image}?conf=/nowhere"), "?conf=FILE"),
        (format!("{image}?conf={weak}&id=nobody"), "ceph auth caps client.nobody"),
        (format!("{image}?conf={away}"), "no monitor"),
    ] {
        let error = Image::open(&name(&text)).err().expect(&text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    std::fs::remove_dir_all(wrong).expect("the folder is removed");
    assert!(matches!(open(&image, 3 << 20, false), Err(OpenError::Size(_))));
    assert!(open(&image, 512, false).is_ok(), "the image itself cannot be opened");
}
