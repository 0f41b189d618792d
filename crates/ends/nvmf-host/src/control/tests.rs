use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn control() -> Arc<Control> {
    Control::shared(EngineKind::Portable).expect("a loop")
}

#[test]
fn a_process_shares_one_control_loop_until_its_last_user_drops_it() {
    // Only this test uses a loop with this engine, so other tests do not keep the loop running.
    let shared = || Control::shared(EngineKind::Auto).expect("a loop");
    let (first, second) = (shared(), shared());
    assert!(Arc::ptr_eq(&first, &second));
    let (name, named) = reply();
    first.spawn(|_| async move { name.send(std::thread::current().id()) });
    let thread = named.wait().expect("the task runs");
    drop((first, second));
    let third = shared();
    let (name, named) = reply();
    third.spawn(|_| async move { name.send(std::thread::current().id()) });
    assert_ne!(named.wait().expect("the task runs"), thread, "the first loop still runs");
}

#[test]
fn a_future_waits_for_a_timer_and_for_an_answer() {
    let control = control();
    let (question, asked) = reply::<Sender<u32>>();
    let (done, end) = reply();
    let begin = Instant::now();
    let pause = Duration::from_millis(20);
    control.spawn(move |local| {
        let local = local.clone();
        async move {
            local.sleep_until(begin + pause).await;
            let (ask, answer) = reply();
            question.send(ask);
            done.send(answer.await);
        }
    });
    asked.wait().expect("the task asks").send(7);
    assert_eq!(end.wait(), Some(Some(7)));
    assert!(begin.elapsed() >= pause);
}

#[test]
fn a_dropped_sender_ends_the_wait_for_its_answer() {
    let (sender, receiver) = reply::<()>();
    drop(sender);
    assert_eq!(receiver.wait(), None);
}

#[test]
fn a_panic_ends_only_the_future_that_panicked() {
    let control = control();
    let (held, dropped) = reply::<()>();
    control.spawn(move |_| async move {
        let _held = held;
        panic!("on purpose");
    });
    assert_eq!(dropped.wait(), None);
    let (held, dropped) = reply::<()>();
    let make = move |_: &Local| -> std::future::Ready<()> {
        let _held = held;
        panic!("on purpose, before there is a future");
    };
    control.spawn(make);
    assert_eq!(dropped.wait(), None);
    let (sender, receiver) = reply();
    control.spawn(|_| async move { sender.send(blocking(is_here).await) });
    let elsewhere = receiver.wait().expect("the loop continues");
    assert!(!elsewhere.expect("a thread"), "blocking work runs on the loop");
}

#[test]
fn the_last_user_of_a_loop_may_run_on_that_loop() {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let control = Control::start(EngineKind::Portable, (std::process::id(), 0)).expect("a loop");
    let thread = control.thread.lock().expect("not poisoned").take().expect("a thread");
    let (give, given) = reply::<Arc<Control>>();
    control.spawn(move |local| {
        let local = local.clone();
        async move {
            drop(given.await);
            // Dropping the control loop's last owner has not ended this future.
            local.sleep_until(Instant::now() + Duration::from_millis(10)).await;
            RUN.fetch_add(1, Ordering::Relaxed);
        }
    });
    give.send(control);
    thread.join().expect("the thread does not panic");
    assert_eq!(RUN.load(Ordering::Relaxed), 1);
}

#[test]
fn a_stopped_loop_drops_spawned_futures() {
    let control = Control::start(EngineKind::Portable, (std::process::id(), 0)).expect("a loop");
    control.inbox.stop();
    let thread = control.thread.lock().expect("not poisoned").take().expect("a thread");
    thread.join().expect("the thread does not panic");
    let (held, dropped) = reply::<()>();
    control.spawn(move |_| async move { held.send(()) });
    assert_eq!(dropped.wait(), None);
}
