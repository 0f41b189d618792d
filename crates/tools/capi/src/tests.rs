//! Calls the C interface as C programs do, with a target in the same process.

use crate::discover::*;
use crate::disk::*;
use crate::options::*;
use crate::paths::*;
use crate::queue::*;
use crate::status::*;
use farblock_backends::Spec;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{Reactor, TaskId};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::ffi::{CStr, CString, c_void};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(unix)]
mod forked;

const NQN: &str = "nqn.2026-11.org.farblock:capi";
const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

fn serve() -> Target {
    serve_at(([127, 0, 0, 1], 0).into(), "mem:16MiB")
}

/// Starts a target that has the same two namespaces every time. `first` describes the first
/// namespace.
fn serve_at(address: SocketAddr, first: &str) -> Target {
    serve_first(address, Spec::parse(first).unwrap().open(BLOCK as u32, false).unwrap())
}

fn serve_first(address: SocketAddr, first: Arc<dyn Namespace>) -> Target {
    serve_numbered(address, first, TargetConfig::default().controller_ids)
}

/// Starts a target that takes the IDs of its controllers from this range.
fn serve_numbered(
    address: SocketAddr,
    first: Arc<dyn Namespace>,
    controller_ids: RangeInclusive<u16>,
) -> Target {
    let second = Spec::parse("mem:16MiB").unwrap().open(BLOCK as u32, true).unwrap();
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    for (nsid, namespace) in [(1, first), (2, second)] {
        let export = Export { namespace, identity: format!("mem-{nsid}") };
        subsystem.exports.insert(NamespaceId(nsid), export);
    }
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![address],
        controller_ids,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

/// The sentence of the last failure.
fn sentence() -> String {
    // SAFETY: the text belongs to this thread, and is valid until the thread's next failure.
    unsafe { CStr::from_ptr(fb_last_error()) }.to_str().expect("the path is UTF-8").to_owned()
}

#[track_caller]
fn fails(status: fb_status, expected: fb_status, words: &str) {
    let text = sentence();
    assert_eq!(status, expected, "{text}");
    assert!(text.contains(words), "{text:?} does not say {words:?}");
}

#[track_caller]
fn good(status: fb_status) {
    assert_eq!(status, fb_status::Ok, "{}", sentence());
}

fn url(target: &Target, nsid: u32) -> CString {
    CString::new(format!("nvme+tcp://{}/{NQN}?ns={nsid}", target.addresses()[0])).unwrap()
}

/// A pointer that may move to another thread.
struct Handle<T>(*mut T);
// SAFETY: disks allow use by any thread, and the tests check such use for queues.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    fn pointer(self) -> *mut T {
        self.0
    }
}

fn connect(target: &Target, nsid: u32, engine: fb_engine) -> *mut fb_disk {
    let options = fb_options { engine: engine as u32, ..options() };
    connect_to(&url(target, nsid), &options)
}

fn connect_to(url: &CStr, options: &fb_options) -> *mut fb_disk {
    let mut disk = null_mut();
    // SAFETY: all pointers are valid.
    good(unsafe { fb_connect(url.as_ptr(), options, &mut disk) });
    disk
}

fn options() -> fb_options {
    // SAFETY: zeroes are the default options.
    let options: fb_options = unsafe { std::mem::zeroed() };
    fb_options { size: size_of::<fb_options>(), queues: 8, ..options }
}

fn describe(disk: *const fb_disk) -> fb_info {
    // SAFETY: any numbers and null pointers are a valid value.
    let mut info: fb_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<fb_info>();
    // SAFETY: the pointers are valid.
    good(unsafe { fb_describe(disk, &mut info) });
    info
}

fn describe_path(disk: *const fb_disk, index: u32) -> fb_path_info {
    // SAFETY: any numbers and null pointers are a valid value.
    let mut info: fb_path_info = unsafe { std::mem::zeroed() };
    info.size = size_of::<fb_path_info>();
    // SAFETY: the pointers are valid.
    good(unsafe { fb_describe_path(disk, index, &mut info) });
    info
}

/// Describes a disk repeatedly until it is in this state.
fn wait_for(disk: *const fb_disk, state: fb_disk_state) -> fb_info {
    let begin = Instant::now();
    loop {
        let info = describe(disk);
        if info.state == state as u32 {
            return info;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{} instead of {state:?}", info.state);
        thread::sleep(Duration::from_millis(5));
    }
}

const ENGINES: &[fb_engine] = if cfg!(target_os = "linux") {
    &[fb_engine::Uring, fb_engine::Portable]
} else {
    &[fb_engine::Portable]
};

fn op(kind: fb_kind, offset: u64, data: &mut [u8], user: usize) -> fb_op {
    fb_op {
        user: std::ptr::without_provenance_mut(user),
        data: data.as_mut_ptr().cast(),
        offset,
        length: data.len() as u64,
        kind: kind as u32,
        flags: 0,
        disk: 0,
        reserved: 0,
    }
}

fn nothing() -> fb_completion {
    fb_completion { user: null_mut(), status: fb_status::Bug, disk: 9 }
}

#[test]
fn blocking_calls_read_and_write() {
    for &engine in ENGINES {
        let target = serve();
        let disk = connect(&target, 1, engine);
        let info = describe(disk);
        // Use memory at an odd address.
        let mut memory: Vec<u8> = (0..2 * BLOCK + 1).map(|n| (n % 251) as u8).collect();
        let mut back = vec![0xa5_u8; 2 * BLOCK + 2];
        // SAFETY: all pointers are valid, and the memory is as long as the arguments say.
        unsafe {
            assert_eq!((info.capacity_bytes, info.block_size), (SIZE, BLOCK as u32));
            assert_eq!((info.namespace_id, info.queues, info.queue_depth), (1, 8, 127));
            assert_eq!((info.paths, info.live_paths), (1, 1));
            let text = CStr::from_ptr(info.description).to_str().unwrap();
            assert!(text.contains("16 MiB"), "{text}");
            let length = 2 * BLOCK as u64;
            let data = memory[1..].as_mut_ptr().cast::<c_void>();
            good(fb_write(disk, data, BLOCK as u64, length, FB_DURABLE));
            good(fb_flush(disk));
            good(fb_read(disk, back[1..].as_mut_ptr().cast(), BLOCK as u64, length));
            assert_eq!((&back[1..=2 * BLOCK], back[0]), (&memory[1..], 0xa5));
            assert_eq!(back[2 * BLOCK + 1], 0xa5, "bytes beyond the end were written");
            good(fb_write_zeroes(disk, BLOCK as u64, BLOCK as u64, FB_KEEP_ALLOCATED));
            good(fb_deallocate(disk, 2 * BLOCK as u64, BLOCK as u64));
            good(fb_read(disk, back.as_mut_ptr().cast(), BLOCK as u64, BLOCK as u64));
            assert!(back[..BLOCK].iter().all(|&byte| byte == 0));
            good(fb_read(disk, back.as_mut_ptr().cast(), SIZE, 0));
            fb_disconnect(disk);
        }
    }
}

#[test]
fn several_threads_can_use_one_disk() {
    let target = serve();
    let disk = Handle(connect(&target, 1, fb_engine::Auto));
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            thread::spawn(move || {
                for round in 0..50 {
                    let offset = (number * 50 + round) * BLOCK as u64;
                    let mut data = vec![(number * 50 + round) as u8; BLOCK];
                    let pointer = data.as_mut_ptr().cast();
                    // SAFETY: the pointers are valid.
                    unsafe {
                        good(fb_write(disk.pointer(), pointer, offset, BLOCK as u64, 0));
                        data.fill(0);
                        good(fb_read(disk.pointer(), data.as_mut_ptr().cast(), offset, 4096));
                    }
                    assert!(data.iter().all(|&byte| byte == (number * 50 + round) as u8));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the thread does not panic"));
    // SAFETY: no other thread uses the disk any more.
    unsafe { fb_disconnect(disk.pointer()) };
}

#[test]
fn a_queue_completes_hundreds_of_operations_on_two_disks() {
    for &engine in ENGINES {
        let target = serve();
        let (disk, other) = (connect(&target, 1, engine), connect(&target, 2, engine));
        let (mut queue, mut index) = (null_mut(), 9);
        let mut memory = vec![0_u8; 300 * BLOCK];
        let mut found = vec![false; 400];
        let mut done = [nothing(); 64];
        // SAFETY: all pointers are valid, and the test does not use the memory of operations in
        // flight.
        unsafe {
            good(fb_queue_open(disk, &mut queue));
            good(fb_queue_add(queue, other, &mut index));
            assert_eq!(index, 1);
            // The queue works without the handles of its disks.
            fb_disconnect(disk);
            fb_disconnect(other);
            for (user, data) in memory.chunks_mut(BLOCK).enumerate() {
                data.fill((user % 255) as u8 + 1);
                let mut op = op(fb_kind::Write, (user * BLOCK) as u64, data, user);
                op.flags = if user % 7 == 0 { FB_DURABLE } else { 0 };
                good(fb_submit(queue, &op));
            }
            let mut zeroes = vec![7_u8; 100 * BLOCK];
            for (at, data) in zeroes.chunks_mut(BLOCK).enumerate() {
                let op = op(fb_kind::Read, (at * BLOCK) as u64, data, 300 + at);
                good(fb_submit(queue, &fb_op { disk: 1, ..op }));
            }
            let mut count = 0;
            while count < 400 {
                let got = fb_poll(queue, done.as_mut_ptr(), 1, 64, 20_000_000);
                assert!(got > 0, "{got}: {}", sentence());
                for completion in &done[..got as usize] {
                    let user = completion.user.addr();
                    assert_eq!(completion.status, fb_status::Ok);
                    assert_eq!(completion.disk, u32::from(user >= 300));
                    assert!(!std::mem::replace(&mut found[user], true), "{user} twice");
                }
                count += got;
            }
            assert!(zeroes.iter().all(|&byte| byte == 0));
            // If nothing is in flight, `fb_poll` does not wait, whatever its arguments.
            assert_eq!(fb_poll(queue, done.as_mut_ptr(), 1, 64, -1), 0);
            let mut back = vec![0_u8; 300 * BLOCK];
            good(fb_submit(queue, &op(fb_kind::Read, 0, &mut back, 1)));
            assert_eq!(fb_poll(queue, done.as_mut_ptr(), 1, 64, -1), 1);
            assert!(back == memory);
            // After a close with an operation in flight, the memory belongs to the test again.
            good(fb_submit(queue, &op(fb_kind::Read, 0, &mut back, 1)));
            fb_poll(queue, null_mut(), 0, 0, 0);
            good(fb_queue_close(queue));
        }
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let target = serve();
    let address = url(&target, 1);
    let mut disk: *mut fb_disk = null_mut();
    // SAFETY: pointers that are not null are valid.
    unsafe {
        let text = |text: &str| CString::new(text).unwrap();
        fails(fb_connect(null(), null(), &mut disk), fb_status::Argument, "the URL is null");
        fails(fb_connect(address.as_ptr(), null(), null_mut()), fb_status::Argument, "is null");
        let odd = c"nvme+tcp://\xff";
        fails(fb_connect(odd.as_ptr(), null(), &mut disk), fb_status::Argument, "UTF-8");
        let http = c"http://a";
        fails(fb_connect(http.as_ptr(), null(), &mut disk), fb_status::Argument, "nvme+tcp://");
        let bare = c"nvme+tcp://127.0.0.1";
        fails(fb_connect(bare.as_ptr(), null(), &mut disk), fb_status::Argument, "subsystem");
        let both = text(address.to_str().unwrap().split_once('?').unwrap().0);
        fails(fb_connect(both.as_ptr(), null(), &mut disk), fb_status::Argument, "(1, 2)");
        fails(fb_connect(c" ".as_ptr(), null(), &mut disk), fb_status::Argument, "no URL");
        let one = address.to_str().unwrap();
        let twice = text(&format!("{one} {one}"));
        fails(fb_connect(twice.as_ptr(), null(), &mut disk), fb_status::Argument, "twice");
        let other = one.replace("ns=1", "ns=2");
        let mixed = text(&format!("{one} {other}"));
        fails(fb_connect(mixed.as_ptr(), null(), &mut disk), fb_status::Argument, "different");
        let dead = c"nvme+tcp://127.0.0.1:1/nqn.2026-11.org.farblock:none";
        fails(fb_connect(dead.as_ptr(), null(), &mut disk), fb_status::Connect, "127.0.0.1:1");
        let other = text(&one.replace("/nqn.", "/nqn.2026-11.org.example:other."));
        fails(fb_connect(other.as_ptr(), null(), &mut disk), fb_status::Missing, "subsystem");
        let ninth = text(&one.replace("ns=1", "ns=9"));
        fails(fb_connect(ninth.as_ptr(), null(), &mut disk), fb_status::Missing, "namespace");
        assert_eq!(fb_status_errno(fb_status::Missing as i32), libc::ENOENT);
        assert!(disk.is_null());

        let mut options: fb_options = std::mem::zeroed();
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "sizeof");
        options.size = size_of::<fb_options>();
        options.flags = 64;
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "0x40");
        (options.flags, options.engine) = (0, 7);
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "engine");
        (options.engine, options.hostid) = (0, c"me".as_ptr());
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "hostid");
        (options.hostid, options.policy) = (null(), 9);
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "policy");
        (options.policy, options.spin) = (0, 4);
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "spin");
        (options.spin, options.reserved) = (0, 1);
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "reserved");
        (options.reserved, options.reconnect_delay_ms) = (0, FB_FOREVER);
        fails(fb_connect(address.as_ptr(), &options, &mut disk), fb_status::Argument, "time");
        let mut newer = [0_usize; 32];
        newer[0] = size_of_val(&newer);
        newer[31] = 1;
        let newer = newer.as_ptr().cast();
        fails(fb_connect(address.as_ptr(), newer, &mut disk), fb_status::Unsupported, "version");

        fails(fb_flush(null()), fb_status::Argument, "the disk is null");
        let crooked = std::ptr::without_provenance(0x1001);
        fails(fb_flush(crooked), fb_status::Argument, "misaligned");
        fb_disconnect(null_mut());
        good(fb_queue_close(null_mut()));
    }
}

#[test]
fn invalid_ranges_are_refused() {
    let target = serve();
    let (disk, read_only) =
        (connect(&target, 1, fb_engine::Auto), connect(&target, 2, fb_engine::Auto));
    let mut data = vec![0_u8; BLOCK];
    let pointer = data.as_mut_ptr().cast::<c_void>();
    let block = BLOCK as u64;
    // SAFETY: refused calls access no memory, and the other arguments are valid.
    unsafe {
        fails(fb_read(disk, null_mut(), 0, block), fb_status::Argument, "data pointer");
        fails(fb_read(disk, pointer, 1, block), fb_status::Alignment, "the offset 1");
        fails(fb_read(disk, pointer, 0, 100), fb_status::Alignment, "the length 100");
        fails(fb_read(disk, pointer, SIZE, block), fb_status::Range, "16777216 bytes");
        fails(fb_read(disk, pointer, u64::MAX - 4095, block), fb_status::Range, "outside");
        fails(fb_read(disk, pointer, 0, u64::MAX - 4095), fb_status::Argument, "address space");
        fails(fb_write(disk, pointer, 0, block, 4), fb_status::Argument, "0x4");
        fails(fb_write(read_only, pointer, 0, block, 0), fb_status::ReadOnly, "read-only");
        fails(fb_write_zeroes(disk, 0, u64::MAX - 4095, 0), fb_status::Range, "outside");
        fails(fb_deallocate(disk, SIZE, block), fb_status::Range, "outside");
        fb_disconnect(disk);
        fb_disconnect(read_only);
    }
}

#[test]
fn invalid_queue_calls_are_refused() {
    let target = serve();
    let disk = connect(&target, 1, fb_engine::Auto);
    let mut data = vec![0_u8; BLOCK];
    let mut queue: *mut fb_queue = null_mut();
    // SAFETY: refused calls access no memory, and the other arguments are valid.
    unsafe {
        good(fb_queue_open(disk, &mut queue));
        let read = op(fb_kind::Read, 0, &mut data, 0);
        fails(fb_submit(queue, null()), fb_status::Argument, "null");
        fails(fb_submit(queue, &fb_op { kind: 77, ..read }), fb_status::Argument, "77");
        fails(fb_submit(queue, &fb_op { flags: 1, ..read }), fb_status::Argument, "0x1");
        fails(fb_submit(queue, &fb_op { disk: 1, ..read }), fb_status::Argument, "is for disk 1");
        fails(fb_submit(queue, &fb_op { reserved: 1, ..read }), fb_status::Argument, "reserved");
        fails(fb_submit(queue, &fb_op { offset: 1, ..read }), fb_status::Alignment, "offset");
        fails(fb_submit(queue, &fb_op { offset: SIZE, ..read }), fb_status::Range, "outside");
        fails(fb_submit(queue, &fb_op { data: null_mut(), ..read }), fb_status::Argument, "null");
        assert_eq!(fb_poll(queue, null_mut(), 0, 1, 0), fb_status::Argument as i32);
        assert_eq!(fb_poll(queue, &mut nothing(), 2, 1, 0), fb_status::Argument as i32);
        assert_eq!(fb_poll(queue, null_mut(), 0, 0, 0), 0, "a completion was polled twice");
        for _ in 0..FB_QUEUE_OPERATIONS {
            good(fb_submit(queue, &fb_op { length: 0, ..read }));
        }
        fails(fb_submit(queue, &read), fb_status::Busy, "poll first");
        let handle = Handle(queue);
        thread::spawn(move || {
            let queue = handle.pointer();
            fails(fb_queue_close(queue), fb_status::Thread, "belongs to the thread");
            assert_eq!(fb_poll(queue, null_mut(), 0, 0, 0), fb_status::Thread as i32);
        })
        .join()
        .expect("the thread does not panic");
        good(fb_queue_close(queue));
        fb_disconnect(disk);
    }
}

/// A slow disk that counts the operations that it has executed.
struct Counted(Arc<dyn Namespace>, Arc<AtomicUsize>);

struct CountedQueue(Box<dyn Queue>, Arc<AtomicUsize>);

impl Namespace for Counted {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(CountedQueue(self.0.open(reactor, parent)?, Arc::clone(&self.1))))
    }
}

impl Queue for CountedQueue {
    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.0.poll(done);
        self.1.fetch_add(done.len() - before, Ordering::SeqCst);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

#[test]
fn no_operation_executes_after_its_queue_was_closed() {
    let count = Arc::new(AtomicUsize::new(0));
    let slow = Spec::parse("delay:300ms,mem:16MiB").unwrap().open(BLOCK as u32, false).unwrap();
    let target = serve_first(([127, 0, 0, 1], 0).into(), Arc::new(Counted(slow, count.clone())));
    for &engine in ENGINES {
        let disk = connect(&target, 1, engine);
        let (mut data, mut queue, mut done) = (vec![1_u8; BLOCK], null_mut(), nothing());
        // SAFETY: all pointers are valid, and the test does not use the memory of operations in
        // flight.
        unsafe {
            good(fb_queue_open(disk, &mut queue));
            good(fb_submit(queue, &op(fb_kind::Flush, 0, &mut [], 1)));
            assert_eq!(fb_poll(queue, &mut done, 1, 1, -1), 1);
            let before = count.load(Ordering::SeqCst);
            good(fb_submit(queue, &op(fb_kind::Write, 0, &mut data, 2)));
            assert_eq!(fb_poll(queue, null_mut(), 0, 0, 0), 0);
            good(fb_queue_close(queue));
            assert_eq!(
                count.load(Ordering::SeqCst) - before,
                1,
                "the operation did not run exactly once"
            );
            fb_disconnect(disk);
        }
    }
}

#[test]
fn a_queue_without_a_target_closes_at_once() {
    let target = serve();
    let disk = connect_to(&url(&target, 1), &fb_options { reconnect_delay_ms: 50, ..options() });
    let (mut data, mut queue) = (vec![1_u8; BLOCK], null_mut());
    drop(target);
    wait_for(disk, fb_disk_state::Waiting);
    // SAFETY: all pointers are valid, and the test does not use the memory of operations in flight.
    unsafe {
        good(fb_queue_open(disk, &mut queue));
        good(fb_submit(queue, &op(fb_kind::Write, 0, &mut data, 2)));
        assert_eq!(fb_poll(queue, null_mut(), 0, 0, 0), 0);
        good(fb_queue_close(queue));
        fb_disconnect(disk);
    }
}

#[test]
fn a_lost_target_is_reported() {
    let target = serve();
    let options = fb_options { ctrl_loss_timeout_ms: 300, reconnect_delay_ms: 50, ..options() };
    let disk = connect_to(&url(&target, 1), &options);
    let (mut data, mut queue) = (vec![0_u8; BLOCK], null_mut());
    let mut done = nothing();
    // SAFETY: all pointers are valid.
    unsafe {
        good(fb_queue_open(disk, &mut queue));
        good(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096));
        drop(target);
        good(fb_submit(queue, &op(fb_kind::Read, 0, &mut data, 5)));
        assert_eq!(fb_poll(queue, &mut done, 1, 1, -1), 1);
        assert_eq!((done.user.addr(), done.status), (5, fb_status::Lost));
        fails(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096), fb_status::Lost, "lost");
        assert!(sentence().contains("127.0.0.1"), "{}", sentence());
        assert_eq!(wait_for(disk, fb_disk_state::Dead).live_paths, 0);
        assert_eq!(describe_path(disk, 0).state, fb_path_state::Dead as u32);
        good(fb_queue_close(queue));
        fb_disconnect(disk);
    }
}

#[test]
fn a_returned_target_is_used_with_its_new_size() {
    for &engine in ENGINES {
        let target = serve();
        let (address, url) = (target.addresses()[0], url(&target, 1));
        let options = fb_options { engine: engine as u32, reconnect_delay_ms: 50, ..options() };
        let disk = connect_to(&url, &options);
        let (mut data, mut queue) = (vec![7_u8; BLOCK], null_mut());
        let mut done = nothing();
        let before = describe(disk);
        assert_eq!(before.state, fb_disk_state::Live as u32);
        // SAFETY: all pointers are valid, and the test does not use the memory of operations in
        // flight.
        unsafe {
            good(fb_queue_open(disk, &mut queue));
            good(fb_submit(queue, &op(fb_kind::Flush, 0, &mut [], 1)));
            assert_eq!(fb_poll(queue, &mut done, 1, 1, -1), 1);
            drop(target);
            good(fb_submit(queue, &op(fb_kind::Write, 8192, &mut data, 2)));
            assert_eq!(
                fb_poll(queue, &mut done, 1, 1, 200_000),
                0,
                "an operation completed without its target"
            );
            assert_eq!(wait_for(disk, fb_disk_state::Waiting).live_paths, 0);
            let path = describe_path(disk, 0);
            assert_eq!((path.state, path.access), (fb_path_state::Reconnecting as u32, 0));
            assert_eq!(CStr::from_ptr(path.url), &*url);
            assert!(!CStr::from_ptr(path.error.as_ptr()).is_empty());
            let _again = serve_at(address, "mem:32MiB");
            assert_eq!(fb_poll(queue, &mut done, 1, 1, -1), 1);
            assert_eq!((done.user.addr(), done.status), (2, fb_status::Ok));
            let mut back = vec![0_u8; BLOCK];
            good(fb_read(disk, back.as_mut_ptr().cast(), 8192, 4096));
            assert!(back == data);
            let after = wait_for(disk, fb_disk_state::Live);
            assert_eq!(after.capacity_bytes, 2 * SIZE);
            assert!(after.changes > before.changes);
            assert_eq!(describe_path(disk, 0).reconnects, 1);
            // The added part of the disk is usable.
            good(fb_submit(queue, &op(fb_kind::Read, 2 * SIZE - 4096, &mut back, 3)));
            assert_eq!(fb_poll(queue, &mut done, 1, 1, -1), 1);
            assert_eq!((done.user.addr(), done.status), (3, fb_status::Ok));
            good(fb_queue_close(queue));
            fb_disconnect(disk);
        }
    }
}

/// A value for `fb_options.waiting`: lets a call continue three times, and then ends the call.
unsafe extern "C" fn three_times(user: *mut c_void) -> i32 {
    // SAFETY: `user` points to a number that outlives the disk.
    let asked = unsafe { &*user.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    i32::from(asked >= 3)
}

#[test]
fn a_program_can_cancel_waiting_calls() {
    for &engine in ENGINES {
        let (target, asked) = (serve(), AtomicUsize::new(0));
        let waiting_user = (&raw const asked).cast_mut().cast();
        let waiting = Some(three_times as unsafe extern "C" fn(*mut c_void) -> i32);
        let engine = engine as u32;
        let options = fb_options { engine, waiting, waiting_user, ..options() };
        let (address, url) = (target.addresses()[0], url(&target, 1));
        let disk = connect_to(&url, &options);
        let mut data = vec![0_u8; BLOCK];
        let again = |asked: &AtomicUsize| assert!(asked.swap(0, Ordering::Relaxed) >= 4);
        // SAFETY: all pointers are valid.
        unsafe {
            good(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096));
            drop(target);
            wait_for(disk, fb_disk_state::Waiting);
            // The queue of the blocking calls may not have noticed the disconnection yet. The call
            // would then wait for a write that was sent.
            fails(
                fb_read(disk, data.as_mut_ptr().cast(), 0, 4096),
                fb_status::Aborted,
                "ended the call",
            );
            asked.store(0, Ordering::Relaxed);
            data.fill(7);
            let status = fb_write(disk, data.as_ptr().cast(), 0, 4096, 0);
            fails(status, fb_status::Aborted, "ended the call");
            again(&asked);
            fails(fb_flush(disk), fb_status::Aborted, "ended the call");
            again(&asked);
            // The library does not execute a cancelled operation later.
            let _target = serve_at(address, "mem:16MiB");
            wait_for(disk, fb_disk_state::Live);
            good(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096));
            assert!(data.iter().all(|&byte| byte == 0), "a block was written");
            fb_disconnect(disk);

            asked.store(0, Ordering::Relaxed);
            let options = fb_options { connect_wait_ms: FB_FOREVER, ..options };
            let mut disk = null_mut();
            // A target that answers may still lack the subsystem.
            let missing = CString::new(format!("nvme+tcp://{address}/nqn.2026-11.org.example:a"));
            let missing = missing.unwrap();
            let nobody = [c"nvme+tcp://127.0.0.1:1/nqn.a?ns=1", c"nvme+tcp://127.0.0.1:1/nqn.a"];
            for nobody in nobody.into_iter().chain([missing.as_c_str()]) {
                let status = fb_connect(nobody.as_ptr(), &options, &mut disk);
                fails(status, fb_status::Aborted, "ended the call");
                again(&asked);
            }
            assert!(disk.is_null());
        }
    }
}

#[test]
fn several_urls_are_paths_to_one_disk() {
    let targets = [1..=99, 100..=199].map(|ids| {
        let disk = Spec::parse("mem:16MiB").unwrap().open(BLOCK as u32, false).unwrap();
        serve_numbered(([127, 0, 0, 1], 0).into(), disk, ids)
    });
    let [one, other] = [&targets[0], &targets[1]].map(|target| {
        let url = url(target, 1).into_string().unwrap();
        url.split_once('?').unwrap().0.to_owned()
    });
    // The namespace in one URL applies to the other URL, too.
    let urls = CString::new(format!(" {one}\n{other}?ns=1 ")).unwrap();
    let policy = fb_policy::RoundRobin as u32;
    let disk = connect_to(&urls, &fb_options { policy, reconnect_delay_ms: 50, ..options() });
    let info = wait_for(disk, fb_disk_state::Live);
    assert_eq!((info.paths, info.live_paths), (2, 2));
    let mut data = vec![1_u8; BLOCK];
    let [first, second] = targets;
    // SAFETY: all pointers are valid.
    unsafe {
        good(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096));
        drop(first);
        for _ in 0..100 {
            good(fb_read(disk, data.as_mut_ptr().cast(), 0, 4096));
        }
        assert_eq!(wait_for(disk, fb_disk_state::Degraded).live_paths, 1);
        assert_eq!(describe_path(disk, 1).state, fb_path_state::Live as u32);
        let mut info = describe_path(disk, 1);
        fails(fb_describe_path(disk, 2, &mut info), fb_status::Argument, "has 2");
        fb_disconnect(disk);
    }
    drop(second);
}

#[test]
fn structures_of_an_older_header_are_accepted() {
    let target = serve();
    let mut disk = null_mut();
    let mut options = fb_options { policy: 77, ..options() };
    options.size = std::mem::offset_of!(fb_options, reconnect_delay_ms);
    // SAFETY: all pointers are valid, and the options are as long as their size says.
    unsafe {
        good(fb_connect(url(&target, 1).as_ptr(), &options, &mut disk));
        let mut info: fb_info = std::mem::zeroed();
        (info.size, info.state) = (std::mem::offset_of!(fb_info, changes), 99);
        good(fb_describe(disk, &mut info));
        assert_eq!((info.capacity_bytes, info.state), (SIZE, 99));
        fb_disconnect(disk);
    }
}

#[test]
fn discovery_lists_the_namespaces_of_a_target() {
    let target = serve();
    let ask = |address: &str, place: *mut *mut fb_discovery| {
        let address = CString::new(address).unwrap();
        // SAFETY: the arguments are a text, no options, and memory for the result.
        unsafe { fb_discover(address.as_ptr(), null(), place) }
    };
    let mut found = null_mut();
    good(ask(&target.addresses()[0].to_string(), &raw mut found));
    let mut entry = fb_entry {
        size: size_of::<fb_entry>(),
        url: null(),
        nqn: null(),
        address: null(),
        service: null(),
        kind: 0,
        transport: 0,
    };
    let mut urls = Vec::new();
    let mut index = 0;
    let end = loop {
        // SAFETY: the arguments are a discovery, and memory of the size in its field.
        let status = unsafe { fb_discovery_entry(found, index, &raw mut entry) };
        if status != fb_status::Ok {
            break status;
        }
        if entry.kind == 2 {
            assert_eq!(entry.transport, 3);
            // SAFETY: the library's text is valid until the discovery is freed.
            urls.push(unsafe { CStr::from_ptr(entry.url) }.to_str().unwrap().to_owned());
        }
        index += 1;
    };
    fails(end, fb_status::Range, "has no entry");
    assert_eq!(urls, [format!("nvme+tcp://{}/{NQN}", target.addresses()[0])]);
    // SAFETY: the arguments are a discovery that no call uses any more, and null.
    unsafe {
        fb_discovery_free(found);
        fb_discovery_free(null_mut());
    }
    let mut none = null_mut();
    fails(ask("127.0.0.1:1", &raw mut none), fb_status::Connect, "cannot connect");
    fails(ask("a b", &raw mut none), fb_status::Argument, "blank");
    fails(ask("127.0.0.1:1/nqn", &raw mut none), fb_status::Argument, "without a name");
    assert!(none.is_null());
    fails(ask("127.0.0.1:1", null_mut()), fb_status::Argument, "null");
}

#[test]
fn a_panic_becomes_a_status() {
    fails(guard(|| panic!("a test")), fb_status::Bug, "bug");
}

#[test]
fn every_status_has_a_text() {
    for code in -40..5 {
        // SAFETY: the library's text stays valid.
        let text = unsafe { CStr::from_ptr(fb_status_text(code)) }.to_str().unwrap();
        assert_eq!(text.contains("unknown"), !(-21..=0).contains(&code), "{code}: {text}");
        assert_eq!(fb_status_errno(code) == 0, code >= 0, "{code}");
    }
}

/// The repository contains the header, so that programs do not need Rust to use it.
#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("../../../engines/include/farblock.h");
    let mut made = Vec::new();
    cbindgen::generate(folder).expect("cbindgen generates the header").write(&mut made);
    if std::env::var_os("FARBLOCK_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the file is written");
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(made == there, "{} is out of date: run `make header`", path.display());
}
