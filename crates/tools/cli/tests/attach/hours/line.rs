//! A simulated network between a host and its target. It can delay data, and delivers the data even
//! after the sender has died.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// The polling interval while the relay holds data.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A relay that can hold data.
pub(super) struct Line {
    pub(super) address: String,
    holds: Arc<AtomicBool>,
}

impl Line {
    pub(super) fn to(target: &str) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the socket has an address").to_string();
        let holds = Arc::new(AtomicBool::new(false));
        let (line, target) = (Line { address, holds: Arc::clone(&holds) }, target.to_owned());
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                pass_on(&near, &far, Some(Arc::clone(&holds)));
                pass_on(&far, &near, None);
            }
        });
        line
    }

    /// Holds the host's data until `let_go`.
    pub(super) fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    pub(super) fn let_go(&self) {
        self.holds.store(false, Ordering::SeqCst);
    }

    pub(super) fn let_go_after(&self, time: Duration) {
        let holds = Arc::clone(&self.holds);
        thread::spawn(move || {
            thread::sleep(time);
            holds.store(false, Ordering::SeqCst);
        });
    }
}

fn pass_on(from: &TcpStream, to: &TcpStream, holds: Option<Arc<AtomicBool>>) {
    let mut from = from.try_clone().expect("the descriptor is duplicated");
    let mut to = to.try_clone().expect("the descriptor is duplicated");
    // Read the data at once, because a reset by the sender would discard unread data.
    let (sender, pieces) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        let held = || holds.as_ref().is_some_and(|holds| holds.load(Ordering::SeqCst));
        for piece in pieces {
            while held() {
                thread::sleep(LOOK_EVERY);
            }
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
