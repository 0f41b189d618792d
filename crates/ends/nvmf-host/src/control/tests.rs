use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn control() -> Arc<Control> {
    Control::shared(EngineKind::Portable).expect("a loop")
}

#[test]
fn a_process_has_one_loop_for_as_long_as_somebody_uses_it() {
    // No other test uses a loop with this engine.
    let shared = || Control::shared(EngineKind::Auto).expect("a loop");
    let (first, second) = (shared(), shared());
    assert!(Arc::ptr_eq(&first, &second));
    let (name, named) = reply();
    first.spawn(|_| async move { name.send(std::thread::current().id()) });
    let thread = named.wait().expect("it ran");
    drop((first, second));
    let third = shared();
    let (name, named) = reply();
    third.spawn(|_| async move { name.send(std::thread::current().id()) });
    assert_ne!(named.wait().expect("it ran"), thread, "the first loop has ended");
}

#[test]
fn what_runs_waits_for_time_and_for_answers() {
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
    asked.wait().expect("it asks").send(7);
    assert_eq!(end.wait(), Some(Some(7)));
    assert!(begin.elapsed() >= pause);
}

#[test]
fn nobody_to_answer_is_an_answer() {
    let (sender, receiver) = reply::<()>();
    drop(sender);
    assert_eq!(receiver.wait(), None);
}

#[test]
fn a_panic_ends_what_panicked_and_nothing_else() {
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
    let elsewhere = receiver.wait().expect("the loop goes on");
    assert!(!elsewhere.expect("a thread"), "what may wait is not done on the loop");
}

#[test]
fn the_last_user_may_be_on_the_loop_itself() {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let control = Control::start(EngineKind::Portable, (std::process::id(), 0)).expect("a loop");
    let thread = control.thread.lock().expect("not poisoned").take().expect("a thread");
    let (give, given) = reply::<Arc<Control>>();
    control.spawn(move |local| {
        let local = local.clone();
        async move {
            drop(given.await);
            // This future ends after the first.
            local.sleep_until(Instant::now() + Duration::from_millis(10)).await;
            RUN.fetch_add(1, Ordering::Relaxed);
        }
    });
    give.send(control);
    thread.join().expect("it ends");
    assert_eq!(RUN.load(Ordering::Relaxed), 1);
}

#[test]
fn a_loop_that_has_ended_drops_what_it_is_given() {
    let control = Control::start(EngineKind::Portable, (std::process::id(), 0)).expect("a loop");
    control.inbox.stop();
    let thread = control.thread.lock().expect("not poisoned").take().expect("a thread");
    thread.join().expect("it ends");
    let (held, dropped) = reply::<()>();
    control.spawn(move |_| async move { held.send(()) });
    assert_eq!(dropped.wait(), None);
}
