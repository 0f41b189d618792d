//! Tests the children of a process whose threads are in calls.

use super::*;
use std::sync::atomic::AtomicBool;

/// Makes all calls in a forked child. Returns the child's exit code, which is 0 if each call ended
/// as expected.
fn outcome_in_a_child(disk: *mut fb_disk, url: &CStr) -> i32 {
    // SAFETY: any numbers and null pointers are a valid value.
    let (mut info, mut path): (fb_info, fb_path_info) = unsafe { std::mem::zeroed() };
    (info.size, path.size) = (size_of::<fb_info>(), size_of::<fb_path_info>());
    let (mut block, mut queue) = ([0_u8; 512], null_mut());
    let data = block.as_mut_ptr().cast();
    // SAFETY: the pointers are valid.
    let calls = unsafe {
        [
            fb_describe(disk, &raw mut info),
            fb_describe_path(disk, 0, &raw mut path),
            fb_read(disk, data, 0, 512),
            fb_write(disk, data, 0, 512, 0),
            fb_flush(disk),
            fb_write_zeroes(disk, 0, 512, 0),
            fb_deallocate(disk, 0, 512),
            fb_queue_open(disk, &raw mut queue),
        ]
    };
    if let Some(at) = calls.iter().position(|&status| status != fb_status::Thread) {
        return 10 + at as i32;
    }
    // SAFETY: the child does not use the disk any more.
    unsafe { fb_disconnect(disk) };
    let (mut again, options) = (null_mut(), options());
    // SAFETY: the pointers are valid.
    let connected = unsafe { fb_connect(url.as_ptr(), &raw const options, &raw mut again) };
    if connected != fb_status::Ok {
        return 2;
    }
    // SAFETY: the disk is connected.
    i32::from(unsafe { fb_flush(again) } != fb_status::Ok)
}

#[test]
fn a_forked_child_does_not_wait_for_threads_of_its_parent() {
    let target = serve();
    let url = url(&target, 1);
    let disk = Handle(connect(&target, 1, fb_engine::Auto));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    describe(disk.pointer());
                    let another = connect(&target, 1, fb_engine::Auto);
                    // SAFETY: both disks are connected, and no other thread uses the second one.
                    unsafe {
                        good(fb_flush(disk.pointer()));
                        fb_disconnect(another);
                    }
                }
            });
        }
        for round in 0..20 {
            // SAFETY: the child only calls the library, which the test checks, and then exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the calls end this process, after a minute at the latest.
                unsafe {
                    libc::alarm(60);
                    libc::_exit(outcome_in_a_child(disk.pointer(), &url));
                }
            }
            let mut status = -1;
            // SAFETY: the process is a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "round {round}: {:?}", libc::WEXITSTATUS(status));
        }
        over.store(true, Ordering::Relaxed);
    });
    // SAFETY: no other thread uses the disk any more.
    unsafe { fb_disconnect(disk.pointer()) };
}
