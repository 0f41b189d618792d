//! The start of a connection in memory: single commands.

use super::{Dial, Region, Wire};
use crate::control::{Local, Mailbox};
use crate::exchange::Exchange;
use crate::transport::dial::from_io;
use farblock_proto::host::{Command, ConnectError, Data};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_reactor::os;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, SglDescriptor, Sqe};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The key under which the current command's memory is registered.
const KEY: u32 = 0;

pub(crate) struct Greeted {
    local: Local,
    mailbox: Mailbox,
    wire: Arc<Wire>,
    timeout: Duration,
}

impl Greeted {
    pub(crate) fn new(local: &Local, dial: &Dial, timeout: Duration) -> Greeted {
        let (mailbox, wire) = (Mailbox::new(local), dial());
        wire.listen(local.reactor().waker(mailbox.task()));
        Greeted { local: local.clone(), mailbox, wire, timeout }
    }

    pub(crate) fn finish(self) -> Arc<Wire> {
        self.wire
    }

    fn send(&self, command: &Command, data: &[u8]) {
        let keyed = |memory: Vec<u8>| {
            let length_bytes = memory.len() as u32;
            self.wire.register(KEY, Region::Bytes(memory));
            let block = KeyedBlock { address: 0, length_bytes, key: KEY, invalidate: false };
            SglDescriptor::keyed(block)
        };
        let (dptr, capsule) = match command.data {
            Data::None => (SglDescriptor::NONE, &[][..]),
            Data::FromController(length) => (keyed(vec![0; length as usize]), &[][..]),
            Data::ToController(length) if length <= ADMIN_IN_CAPSULE_BYTES => {
                (SglDescriptor::in_capsule(0, length), data)
            }
            Data::ToController(_) => (keyed(data.to_vec()), &[][..]),
        };
        self.wire.send(Sqe { dptr, ..command.sqe }, capsule);
    }

    async fn answer(&self, during: &'static str) -> Result<Cqe, ConnectError> {
        let deadline = os::now() + self.timeout;
        loop {
            // Read this flag before taking answers. Otherwise an answer that arrives just before
            // the close would be missed.
            let closed = self.wire.is_closed();
            if let Some(cqe) = self.wire.take_answers().pop() {
                return Ok(cqe);
            }
            if closed {
                return Err(ConnectError::Closed { during });
            }
            if self.local.until(deadline, self.mailbox.ready()).await.is_none() {
                let late = io::ErrorKind::TimedOut.into();
                return Err(from_io(&late, during, self.timeout));
            }
        }
    }
}

impl Exchange for Greeted {
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        self.send(command, data);
        let answer = self.answer(during).await;
        let memory = self.wire.deregister(KEY);
        let data = match (command.data, memory) {
            (Data::FromController(_), Some((Region::Bytes(bytes), _))) => bytes,
            _ => Vec::new(),
        };
        answer.map(|cqe| (cqe, data))
    }
}
