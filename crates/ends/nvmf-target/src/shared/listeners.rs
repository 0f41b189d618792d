//! Listeners that come and go while the target runs. The first core has them all.

use super::{Message, Shared};
use crate::control::ChangeError;
use farblock_proto::controller::{AddressFamily, Listener, PortId};
use farblock_reactor::os::{self, ListenSocket};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc;

/// What is listened on, and what was at the start: hosts know the target by that, see
/// [`origin`](crate::identity::origin).
#[derive(Default)]
pub(crate) struct Listening(Mutex<Vec<Listened>>);

#[derive(Clone, Copy)]
struct Listened {
    address: SocketAddr,
    port: PortId,
    since_start: bool,
}

impl Listening {
    /// Notes what is listened on from the start.
    pub(crate) fn begin(&self, addresses: &[SocketAddr]) {
        let port = |index| PortId(index as u16 + 1);
        let listened = addresses.iter().enumerate().map(|(index, &address)| Listened {
            address,
            port: port(index),
            since_start: true,
        });
        *self.0.lock().expect("no holder panics") = listened.collect();
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let all = self.0.lock().expect("no holder panics");
        all.iter().map(|listened| listened.address).collect()
    }
}

/// What the discovery log page says of a listener.
pub(crate) fn entry(port: PortId, address: SocketAddr) -> Listener {
    Listener {
        port,
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

fn refused(address: SocketAddr, sentence: impl ToString) -> ChangeError {
    ChangeError::Address(address.to_string(), sentence.to_string())
}

impl Shared {
    /// Listens on what was just bound to `address`.
    pub(crate) fn listen(
        &self,
        socket: ListenSocket,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let mut all = self.listening.0.lock().expect("no holder panics");
        let free = |port: &u16| all.iter().all(|listened| listened.port.0 != *port);
        let port = PortId((1..u16::MAX).find(free).expect("there are few"));
        {
            let mut management = self.lock_running()?;
            let added = management.registry.add_listener(entry(port, address));
            added.map_err(|error| refused(address, error))?;
        }
        let (sender, receiver) = mpsc::channel();
        self.mailboxes()[0].post(Message::Listen(socket, address, sender));
        // A core that has ended drops what was posted.
        let heard = os::recv(&receiver);
        let mut management = self.lock();
        match heard {
            Ok(Ok(())) => {
                all.push(Listened { address, port, since_start: false });
                self.act(&mut management);
                Ok(())
            }
            other => {
                let _ = management.registry.remove_listener(port);
                self.act(&mut management);
                match other {
                    Ok(Err(error)) => Err(refused(address, error)),
                    _ => Err(ChangeError::Stopping),
                }
            }
        }
    }

    /// Listens there no more, and closes the connections that came in there.
    pub(crate) fn unlisten(&self, address: SocketAddr) -> Result<(), ChangeError> {
        let mut all = self.listening.0.lock().expect("no holder panics");
        let Some(index) = all.iter().position(|listened| listened.address == address) else {
            return Err(refused(address, "the target does not listen there"));
        };
        let started = all.iter().filter(|listened| listened.since_start).count();
        if all[index].since_start && started == 1 {
            let sentence = "hosts know this target by the addresses that it was started with, and \
                            this is the last of them: keep it, or restart without it";
            return Err(refused(address, sentence));
        }
        let Listened { port, .. } = all.remove(index);
        let mut management = self.lock_running()?;
        let gone = management.registry.remove_listener(port);
        gone.map_err(|error| refused(address, error))?;
        self.act(&mut management);
        self.mailboxes()[0].post(Message::Unlisten(address));
        Ok(())
    }
}
