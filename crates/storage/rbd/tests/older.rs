//! Tests with images of a real cluster and a librbd without functions newer than Ceph 14. The test
//! runs in its own process, because a process has only one librbd. `interop/ceph/test.sh` runs it.

#![cfg(target_os = "linux")]

mod pool;

use farblock_block::blocking::Blocking;
use farblock_block::conformance::{MIN_BYTES, Suite};
use farblock_reactor::EngineKind;
use pool::{fresh, shared, used};

const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn an_image_conforms_with_the_functions_of_ceph_14() {
    farblock_rbd::use_as_of_ceph_14();
    let make = |block_size| shared(&fresh(MIN_BYTES, "layering"), block_size);
    Suite::new(EngineKind::Auto).run(&make);
}

/// Without a command for zeroes, `farblock_rbd` writes one block repeatedly. librbd converts whole
/// objects of zeroes to discards.
#[test]
#[ignore = "needs a cluster: interop/ceph/test.sh"]
fn zeroes_are_written_as_one_repeated_block() {
    farblock_rbd::use_as_of_ceph_14();
    let image = fresh(MIN_BYTES, "layering");
    let mut disk = Blocking::new(&*shared(&image, 512)).expect("the queue opens");
    disk.write(0, &vec![7; (8 * MIB) as usize]).expect("the write succeeds");
    let half = 4 * MIB / 512;
    disk.write_zeroes(0, half as u32, false).expect("the first object is zeroed");
    disk.write_zeroes(half, 3, false).expect("a part of the second object is zeroed");
    assert_eq!(used(&image), 1, "write zeroes used the newer command, and freed no object");
    let mut data = vec![1; (8 * MIB) as usize];
    disk.read(0, &mut data).expect("the read succeeds");
    let (zeroes, rest) = data.split_at((4 * MIB + 3 * 512) as usize);
    assert!(zeroes.iter().all(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 7));
}
