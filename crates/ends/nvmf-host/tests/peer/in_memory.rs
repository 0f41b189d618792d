//! Scripted targets over the memory transport.

use super::{Capsule, Carries, PeerShared, SUBSYSTEM, Script};
use farblock_host::memory::{Dial, Wire};
use farblock_host::{Controller, Error, Options};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, Sqe, Status};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A controller's end of a wire.
pub struct Wired {
    pub wire: Arc<Wire>,
    /// The host's memory for unanswered commands, by command identifier.
    blocks: HashMap<u16, KeyedBlock>,
}

impl Wired {
    fn block(&self, cid: u16) -> io::Result<KeyedBlock> {
        self.blocks.get(&cid).copied().ok_or_else(|| io::Error::other("the command has no data"))
    }
}

impl Carries for Wired {
    fn command(&mut self) -> io::Result<Capsule> {
        let (sqe, data): (Sqe, _) = self.wire.wait_command().ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(block) = sqe.dptr.keyed_block() {
            self.blocks.insert(sqe.cid.get(), block);
        }
        Ok(Capsule { sqe, data })
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        self.blocks.remove(&cid);
        self.wire.answer(Cqe::new(cid, super::SQHD, status, result));
        Ok(())
    }

    fn push_all(&mut self, cid: u16, data: &[u8], _: usize, _: bool) -> io::Result<()> {
        let block = self.block(cid)?;
        assert!(self.wire.write(&block, 0, data), "a registered range");
        self.succeed(cid)
    }

    fn pull(&mut self, capsule: &Capsule, offset: u32, length: u32) -> io::Result<Vec<u8>> {
        let block = self.block(capsule.cid())?;
        let address = block.address + u64::from(offset);
        let mut data = vec![0; length as usize];
        let part = KeyedBlock { address, length_bytes: length, ..block };
        assert!(self.wire.read(&part, &mut data), "a registered range");
        Ok(data)
    }
}

/// A target in this process. When it is dropped, it closes its connections.
pub struct Near {
    shared: Arc<PeerShared<Wired>>,
    wires: Arc<Mutex<Vec<Arc<Wire>>>>,
}

impl Near {
    pub fn new(script: Script<Wired>) -> Near {
        Near { shared: Arc::new(PeerShared::new(script)), wires: Arc::default() }
    }

    /// Connects a host to this target.
    pub fn connect(&self, options: &Options) -> Result<Controller, Error> {
        let (shared, wires) = (Arc::clone(&self.shared), Arc::clone(&self.wires));
        let dial: Dial = Arc::new(move || {
            let wire = Arc::new(Wire::default());
            let mut end = Wired { wire: Arc::clone(&wire), blocks: HashMap::new() };
            wires.lock().unwrap().push(Arc::clone(&wire));
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                shared.connections.fetch_add(1, Ordering::AcqRel);
                // The host disconnects when a test ends.
                let _ = shared.serve(&mut end);
                end.wire.close();
                shared.connections.fetch_sub(1, Ordering::AcqRel);
            });
            wire
        });
        Controller::connect_in_memory(dial, SUBSYSTEM, options)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.wires.lock().unwrap().drain(..).for_each(|wire| wire.close());
    }

    pub fn was_shut_down(&self) -> bool {
        self.shared.shut_down.load(Ordering::Acquire)
    }
}
