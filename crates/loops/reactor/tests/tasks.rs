//! Tests tasks, timers and wakers, on both engines.

mod support;

use std::time::Duration;

use farblock_reactor::{EngineKind, Event, os};
use support::{Loop, WAIT_LIMIT};

on_both_engines! {
    a_reactor_names_its_engine
    a_notified_task_is_ready_at_once
    poll_returns_after_its_timeout
    poll_with_a_zero_timeout_does_not_wait
    another_thread_wakes_a_task
    a_storm_of_wakes_loses_none
    waking_a_removed_task_has_no_effect
    timers_expire_in_order
    timers_can_be_moved_and_disarmed
    children_report_their_root
    busy_tasks_do_not_starve_streams
}

on_the_simulated_engine! {
    a_reactor_names_its_engine
    a_notified_task_is_ready_at_once
    poll_returns_after_its_timeout
    poll_with_a_zero_timeout_does_not_wait
    waking_a_removed_task_has_no_effect
    timers_expire_in_order
    timers_can_be_moved_and_disarmed
    children_report_their_root
    busy_tasks_do_not_starve_streams
}

#[cfg(target_os = "linux")]
mod watches {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use super::support::Loop;
    use crate::on_both_engines;
    use rustix::event::{EventfdFlags, eventfd};

    on_both_engines! {
        a_watch_reports_every_write
        an_ended_watch_reports_nothing
        a_watch_of_a_regular_file_is_refused
    }

    fn write(event: &OwnedFd) {
        rustix::io::write(event, &1_u64.to_ne_bytes()).expect("a write");
    }

    /// The watch reports every write, although no thread reads the descriptor.
    fn a_watch_reports_every_write(mut event_loop: Loop) {
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
        let task = event_loop.task;
        event_loop.reactor.watch(task, event.try_clone().expect("a copy")).expect("a watch");
        assert!(event_loop.poll(Some(Duration::from_millis(20))).is_empty());
        for _ in 0..100 {
            write(&event);
            assert_eq!(event_loop.poll(None), [task]);
        }
        assert!(event_loop.poll(Some(Duration::from_millis(20))).is_empty());
        // Watch the descriptor for another task as well. The descriptor is still readable because
        // of an earlier write.
        let other = event_loop.reactor.add_task();
        event_loop.reactor.watch(other, event).expect("a watch");
        assert_eq!(event_loop.poll(None), [other]);
    }

    fn an_ended_watch_reports_nothing(mut event_loop: Loop) {
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
        let task = event_loop.task;
        let copy = event.try_clone().expect("a copy");
        let watch = event_loop.reactor.watch(task, copy).expect("a watch");
        event_loop.reactor.unwatch(watch);
        event_loop.reactor.unwatch(watch);
        write(&event);
        assert!(event_loop.poll(Some(Duration::from_millis(20))).is_empty());
        // After the other end of a pipe is closed, the watch reports this once.
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let watch = event_loop.reactor.watch(task, reader).expect("a watch");
        drop(writer);
        assert_eq!(event_loop.poll(None), [task]);
        assert!(event_loop.poll(Some(Duration::from_millis(20))).is_empty());
        event_loop.reactor.unwatch(watch);
        assert!(event_loop.poll(Some(Duration::from_millis(20))).is_empty());
    }

    fn a_watch_of_a_regular_file_is_refused(event_loop: Loop) {
        let file = std::fs::File::open("Cargo.toml").expect("a file");
        assert!(event_loop.reactor.watch(event_loop.task, file.into()).is_err());
    }
}

fn a_reactor_names_its_engine(event_loop: Loop) {
    let kind = event_loop.reactor.engine();
    assert!(matches!(kind, EngineKind::Uring | EngineKind::Portable | EngineKind::Sim));
    assert_eq!(format!("{:?}", event_loop.reactor), format!("Reactor({kind})"));
}

fn a_notified_task_is_ready_at_once(mut event_loop: Loop) {
    let task = event_loop.task;
    event_loop.reactor.notify(task);
    event_loop.reactor.notify(task);
    assert_eq!(event_loop.poll(None), [task]);
    assert!(event_loop.poll(Some(Duration::ZERO)).is_empty());
}

fn poll_returns_after_its_timeout(mut event_loop: Loop) {
    let start = os::now();
    assert!(event_loop.poll(Some(Duration::from_millis(30))).is_empty());
    assert!(os::elapsed(start) >= Duration::from_millis(30));
}

fn poll_with_a_zero_timeout_does_not_wait(mut event_loop: Loop) {
    let start = os::now();
    for _ in 0..1000 {
        assert!(event_loop.poll(Some(Duration::ZERO)).is_empty());
    }
    assert!(os::elapsed(start) < WAIT_LIMIT);
}

fn another_thread_wakes_a_task(mut event_loop: Loop) {
    let task = event_loop.task;
    let waker = event_loop.reactor.waker(task);
    for round in 0..20 {
        let waker = waker.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round % 3));
            waker.wake();
            waker.wake();
        });
        assert_eq!(event_loop.poll(None), [task]);
        thread.join().unwrap();
        // After the loop has handled the first wake-up, the second must mark the task again.
        event_loop.poll(Some(Duration::ZERO));
    }
}

fn a_storm_of_wakes_loses_none(mut event_loop: Loop) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const THREADS: usize = 3;
    const WAKES: usize = 20_000;
    let counter = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (waker, counter) = (event_loop.reactor.waker(event_loop.task), counter.clone());
            std::thread::spawn(move || {
                for index in 0..WAKES {
                    counter.fetch_add(1, Ordering::SeqCst);
                    waker.wake();
                    if index % 500 == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
            })
        })
        .collect();
    // If a wake-up were lost, the loop would sleep forever.
    while counter.load(Ordering::SeqCst) < THREADS * WAKES {
        let before = counter.load(Ordering::SeqCst);
        let ready = event_loop.poll(Some(WAIT_LIMIT)).len();
        assert!(ready == 1 || counter.load(Ordering::SeqCst) == before, "a wake was lost");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn waking_a_removed_task_has_no_effect(mut event_loop: Loop) {
    let other = event_loop.reactor.add_task();
    let waker = event_loop.reactor.waker(other);
    event_loop.reactor.remove_task(other);
    waker.wake();
    assert!(event_loop.poll(Some(Duration::from_millis(5))).is_empty());
    let task = event_loop.task;
    event_loop.reactor.notify(other);
    event_loop.reactor.set_timer(other, Some(os::now()));
    event_loop.reactor.remove_task(other);
    assert!(event_loop.poll(Some(Duration::from_millis(5))).is_empty());
    let last = event_loop.reactor.waker(task);
    drop(event_loop);
    last.wake();
}

fn timers_expire_in_order(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let start = os::now();
    let tasks: Vec<_> = [30, 10, 20].map(|ms| (reactor.add_task(), ms)).to_vec();
    for &(task, ms) in &tasks {
        reactor.set_timer(task, Some(start + Duration::from_millis(ms)));
    }
    let mut order = Vec::new();
    while order.len() < 3 {
        for task in event_loop.poll(None).to_vec() {
            let ms = tasks.iter().find(|(id, _)| *id == task).unwrap().1;
            assert!(os::elapsed(start) >= Duration::from_millis(ms), "the timer expired too early");
            let mut events = Vec::new();
            reactor.take_events(task, &mut events);
            assert!(matches!(events[..], [Event::Timer]));
            order.push(ms);
        }
    }
    assert_eq!(order, [10, 20, 30]);
    assert!(event_loop.poll(Some(Duration::from_millis(5))).is_empty());
}

fn timers_can_be_moved_and_disarmed(mut event_loop: Loop) {
    let (reactor, task) = (event_loop.reactor.clone(), event_loop.task);
    let soon = || Some(os::now() + Duration::from_millis(5));
    reactor.set_timer(task, soon());
    reactor.set_timer(task, None);
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
    reactor.set_timer(task, soon());
    let later = os::now() + Duration::from_millis(40);
    reactor.set_timer(task, Some(later));
    assert!(matches!(event_loop.next(), Event::Timer));
    assert!(os::now() >= later);
    reactor.set_timer(task, Some(os::now() + WAIT_LIMIT));
    reactor.set_timer(task, Some(os::now()));
    assert!(matches!(event_loop.next(), Event::Timer));
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
}

fn children_report_their_root(mut event_loop: Loop) {
    let (reactor, root) = (event_loop.reactor.clone(), event_loop.task);
    let child = reactor.add_child(root);
    let grandchild = reactor.add_child(child);
    reactor.set_timer(child, Some(os::now()));
    reactor.set_timer(grandchild, Some(os::now()));
    assert_eq!(event_loop.poll(None), [root]);
    let mut events = Vec::new();
    reactor.take_events(child, &mut events);
    reactor.take_events(grandchild, &mut events);
    assert!(matches!(events[..], [Event::Timer, Event::Timer]));
    reactor.waker(grandchild).wake();
    assert_eq!(event_loop.poll(None), [root]);
    reactor.remove_task(grandchild);
    reactor.notify(grandchild);
    assert!(event_loop.poll(Some(Duration::from_millis(5))).is_empty());
}

/// A task that is always ready must not keep the loop from its sockets.
fn busy_tasks_do_not_starve_streams(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let busy = reactor.add_task();
    let (a, b) = event_loop.stream_pair();
    reactor.recv(b);
    let mut batch = farblock_reactor::SendBatch::new();
    batch.bytes(b"x");
    reactor.send(a, batch);
    let mut seen = 0;
    for _ in 0..10_000 {
        reactor.notify(busy);
        assert!(event_loop.poll(None).contains(&busy));
        while let Some(event) = event_loop.next_within(Duration::ZERO) {
            assert!(matches!(event, Event::Sent { .. } | Event::Received { .. }));
            seen += 1;
        }
        if seen == 2 {
            return;
        }
    }
    panic!("busy tasks starved the stream");
}

/// Returns the processor time of this thread so far; `None` if the system does not report it.
#[cfg(not(windows))]
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Calls Windows: under Wine, the file in `/proc` would describe another process.
#[cfg(windows)]
fn processor_time() -> Option<Duration> {
    use windows_sys::Win32::Foundation::FILETIME;
    use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};
    let [mut created, mut ended, mut kernel, mut user] = [FILETIME::default(); 4];
    // SAFETY: the handle of this thread is always open, and the variables belong to this function.
    let told = unsafe {
        GetThreadTimes(GetCurrentThread(), &mut created, &mut ended, &mut kernel, &mut user)
    };
    let units =
        |time: FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    (told != 0).then(|| Duration::from_nanos((units(kernel) + units(user)) * 100))
}

/// Tests the polling modes `Adaptive` and `Busy`.
#[test]
fn an_idle_loop_uses_no_processor() {
    let loops = [Loop::uring(), Loop::uring_busy(), Some(Loop::portable())];
    for event_loop in loops.into_iter().flatten() {
        uses_no_processor(event_loop);
    }
}

/// Measures processor time, which does not depend on other load, instead of elapsed time.
fn uses_no_processor(mut event_loop: Loop) {
    // First keep the loop busy, so that an adaptive loop starts to busy-poll.
    let waker = event_loop.reactor.waker(event_loop.task);
    let thread = std::thread::spawn(move || {
        for _ in 0..2000 {
            waker.wake();
            std::thread::sleep(Duration::from_micros(1));
        }
    });
    while !thread.is_finished() {
        event_loop.poll(Some(Duration::from_millis(1)));
    }
    let (_stream, _socket) = event_loop.stream_and_socket();
    let Some(before) = processor_time() else { return };
    let idle = Duration::from_millis(500);
    assert!(event_loop.next_within(idle).is_none());
    let used = processor_time().unwrap() - before;
    // Windows counts processor time in ticks of about 16 ms.
    let share = if cfg!(windows) { 15 } else { 50 };
    assert!(used < idle / share, "{used:?} of processor time in {idle:?} of idleness");
}
