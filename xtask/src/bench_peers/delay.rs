//! A TCP forwarder that forwards each byte after a fixed delay.
//!
//! In each direction, it also wakes two more threads and copies the data twice. The latencies that
//! `across` reports include this overhead.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum size of one read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The maximum number of chunks that wait in one direction of a connection. At this limit, the
/// forwarder stops receiving, so the sender waits.
const MOST_CHUNKS: usize = 1024;

/// The time at which to send data, and the data.
type Chunk = (Instant, Vec<u8>);

/// Listens at `address` until this process exits, and forwards connections to `to`. Returns the
/// actual address.
pub(super) fn forward(
    address: IpAddr,
    to: SocketAddr,
    each_way: Duration,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let local = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // After an error, the connection is closed.
            let _ = join(near, to, each_way);
        }
    });
    Ok(local)
}

fn join(near: TcpStream, to: SocketAddr, each_way: Duration) -> io::Result<()> {
    let far = TcpStream::connect(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    carry(near.try_clone()?, far.try_clone()?, each_way);
    carry(far, near, each_way);
    Ok(())
}

/// Forwards one direction. Receiving and sending have separate threads, so that delayed data does
/// not block receiving.
fn carry(from: TcpStream, into: TcpStream, delay: Duration) {
    let (sender, chunks) = mpsc::sync_channel(MOST_CHUNKS);
    thread::spawn(move || take_in(from, &sender, delay));
    thread::spawn(move || pass_on(into, &chunks));
}

fn take_in(mut from: TcpStream, chunks: &SyncSender<Chunk>, delay: Duration) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let Ok(count @ 1..) = from.read(&mut chunk) else { return };
        chunk.truncate(count);
        if chunks.send((Instant::now() + delay, chunk)).is_err() {
            return;
        }
    }
}

fn pass_on(mut into: TcpStream, chunks: &Receiver<Chunk>) {
    // By default the kernel prolongs sleeps by up to 50 µs. Request the minimum.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    for (due, chunk) in chunks {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
        }
        if into.write_all(&chunk).is_err() {
            // The receiver has disconnected. Close the other direction, too.
            let _ = into.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = into.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A server that echoes the data of one client.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((HERE, 0)).expect("a port is free");
        let address = listener.local_addr().expect("the socket has an address");
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the client connects");
            io::copy(&mut &stream, &mut &stream)
        });
        address
    }

    #[test]
    fn the_delayed_connection_delivers_all_bytes_after_the_delay() {
        let each_way = Duration::from_millis(5);
        let address = forward(HERE, echo(), each_way).expect("a port is free");
        let mut stream = TcpStream::connect(address).expect("the forwarder listens");
        let sent: Vec<u8> = (0..500_000_u32).map(|at| (at >> 2) as u8).collect();
        let begun = Instant::now();
        let mut writer = stream.try_clone().expect("the stream can be cloned");
        let whole = sent.clone();
        let writes = thread::spawn(move || {
            writer.write_all(&whole).expect("the forwarder reads");
            writer.shutdown(Shutdown::Write).expect("the stream is connected");
        });
        let mut first = [0];
        stream.read_exact(&mut first).expect("the echo arrives");
        assert!(begun.elapsed() >= each_way * 2, "the echo came before both delays had passed");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the echo ends");
        writes.join().expect("the writer does not panic");
        assert!(first[0] == sent[0] && rest == sent[1..]);
    }
}
