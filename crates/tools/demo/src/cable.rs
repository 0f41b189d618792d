//! A TCP relay that simulates the network between the host and one address of the mirror. The
//! demonstration can cut it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A relay, which runs until the process ends.
pub(super) struct Cable {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<CableState>>,
}

#[derive(Default)]
struct CableState {
    is_cut: bool,
    next: u64,
    /// Both ends of each connection.
    connections: BTreeMap<u64, [TcpStream; 2]>,
}

impl Cable {
    /// Starts a relay to the address `to`.
    pub(super) fn new(to: SocketAddr) -> io::Result<Cable> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(CableState::default()));
        let shared = Arc::clone(&state);
        let accept = move || {
            for near in listener.incoming().map_while(Result::ok) {
                // On an error the connection closes, and the host reconnects.
                let _ = carry(near, to, &shared);
            }
        };
        thread::Builder::new().name("cable".to_owned()).spawn(accept)?;
        Ok(Cable { address, state })
    }

    /// Closes all connections, and refuses new ones.
    pub(super) fn cut(&self) {
        let mut state = lock(&self.state);
        state.is_cut = true;
        for end in std::mem::take(&mut state.connections).into_values().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn mend(&self) {
        lock(&self.state).is_cut = false;
    }
}

fn lock(state: &Mutex<CableState>) -> MutexGuard<'_, CableState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Relays one connection with two threads, one per direction.
fn carry(near: TcpStream, to: SocketAddr, shared: &Arc<Mutex<CableState>>) -> io::Result<()> {
    if lock(shared).is_cut {
        return Ok(());
    }
    let far = TcpStream::connect(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ways = [(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)];
    let number = {
        let mut state = lock(shared);
        if state.is_cut {
            return Ok(());
        }
        state.next += 1;
        let number = state.next;
        state.connections.insert(number, [near, far]);
        number
    };
    for (mut from, mut to) in ways {
        let shared = Arc::clone(shared);
        let copy = move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            lock(&shared).connections.remove(&number);
        };
        thread::Builder::new().name("cable".to_owned()).spawn(copy)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_cable_forwards_data_except_while_it_is_cut() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let cable = Cable::new(echo.local_addr().unwrap()).unwrap();
        thread::spawn(move || {
            for stream in echo.incoming().map_while(Result::ok) {
                let mut back = stream.try_clone().unwrap();
                thread::spawn(move || io::copy(&mut &stream, &mut back));
            }
        });
        let connect = || TcpStream::connect(cable.address).unwrap();
        let mut byte = [7];
        for _ in 0..2 {
            let mut stream = connect();
            stream.write_all(&byte).unwrap();
            stream.read_exact(&mut byte).unwrap();
            cable.cut();
            assert!(!matches!(stream.read(&mut byte), Ok(1..)), "data still arrives");
            assert!(!matches!(connect().read(&mut byte), Ok(1..)), "a new connection carries data");
            cable.mend();
        }
        assert!(lock(&cable.state).connections.is_empty());
    }
}
