//! A proxy that flips a bit in the data of some PDUs, like bad memory, or like a bad network card
//! that recomputes TCP checksums. Only data digests detect this damage.

use farblock_random::Random;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The header flag of a PDU with a data digest (DDGSTF).
const HAS_DIGEST: u8 = 1 << 1;
const COMMON_BYTES: usize = 8;

#[derive(Default)]
struct DirtState {
    clean: AtomicBool,
    stop: AtomicBool,
    /// The numbers of damaged PDUs: from the host, and from the target.
    damaged: [AtomicU64; 2],
}

pub struct Dirt {
    pub address: SocketAddr,
    state: Arc<DirtState>,
}

impl Dirt {
    /// Starts a proxy to `to` that damages one in `one_in` PDUs with data.
    pub fn new(to: SocketAddr, one_in: u64, seed: u64) -> Dirt {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(DirtState::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(host), Ok(target)) = (stream, TcpStream::connect(to)) else { continue };
                let ends = [(&host, &target), (&target, &host)];
                for (direction, (from, to)) in ends.into_iter().enumerate() {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = Arc::clone(&shared);
                    let random = Random::new(seed ^ (number << 1 | direction as u64) << 20);
                    std::thread::spawn(move || {
                        let _ = pass_on(&from, &to, random, one_in, &state, direction);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Dirt { address, state }
    }

    /// Returns the numbers of damaged PDUs: from the host, and from the target.
    pub fn damaged(&self) -> [u64; 2] {
        [0, 1].map(|direction| self.state.damaged[direction].load(Ordering::SeqCst))
    }

    /// Stops damaging PDUs.
    pub fn clean(&self) {
        self.state.clean.store(true, Ordering::SeqCst);
    }
}

impl Drop for Dirt {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut random: Random,
    one_in: u64,
    state: &DirtState,
    direction: usize,
) -> io::Result<()> {
    loop {
        let mut pdu = vec![0; COMMON_BYTES];
        from.read_exact(&mut pdu)?;
        let (flags, data_at) = (pdu[1], usize::from(pdu[3]));
        let length = u32::from_le_bytes(pdu[4..8].try_into().expect("four bytes")) as usize;
        pdu.resize(length.max(COMMON_BYTES), 0);
        from.read_exact(&mut pdu[COMMON_BYTES..])?;
        let has_data = flags & HAS_DIGEST != 0 && (COMMON_BYTES..length).contains(&data_at);
        if has_data && random.below(one_in) == 0 && !state.clean.load(Ordering::SeqCst) {
            // Choose any bit of the data or of their digest.
            let at = data_at + random.below((length - data_at) as u64) as usize;
            pdu[at] ^= 1 << random.below(8);
            state.damaged[direction].fetch_add(1, Ordering::SeqCst);
        }
        to.write_all(&pdu)?;
    }
}
