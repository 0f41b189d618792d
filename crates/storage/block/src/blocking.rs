//! A synchronous interface to a namespace, for tests, examples and command-line tools.

use std::time::Duration;

use farblock_reactor::{Buffer, Config, EngineKind, Reactor, TaskId};

use crate::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};

/// One operation of a large transfer has at most this many bytes: 1 MiB.
const PIECE_BYTES: usize = 1 << 20;
/// The number of operations of one transfer that are in flight at the same time.
const PIECES_IN_FLIGHT: usize = 8;

/// A namespace with blocking calls. It has its own reactor and queue.
///
/// ```no_run
/// # fn open() -> std::sync::Arc<dyn farblock_block::Namespace> { unimplemented!() }
/// use farblock_block::blocking::Blocking;
///
/// let namespace = open();
/// let mut disk = Blocking::new(&*namespace)?;
/// let mut sector = vec![0; disk.geometry().block_size as usize];
/// disk.read(0, &mut sector)?;
/// disk.write(1, &sector)?;
/// disk.flush()?;
/// # Ok::<(), farblock_block::BlockError>(())
/// ```
///
/// Transfers may have any length that is a multiple of the block size. A large transfer becomes
/// several operations, of which some are in flight at the same time, so it is not atomic. If an
/// operation fails, the call waits for the others and returns the first error. Each call copies
/// data between the caller's slice and the operation's buffer. Use a [`Queue`] for speed.
///
/// # Panics
/// All calls panic if the event loop fails (an error of its `poll`), and if the length of a slice
/// is not a multiple of the block size.
pub struct Blocking {
    // Keep this field first: dropping the queue may deregister it from the reactor.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    geometry: Geometry,
    ready: Vec<TaskId>,
    done: Vec<Completion>,
}

/// The caller's slice for a transfer.
enum Data<'a> {
    /// The destination of a read.
    Into(&'a mut [u8]),
    /// The source of a write.
    From(&'a [u8]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Data::Into(bytes) => bytes.len(),
            Data::From(bytes) => bytes.len(),
        }
    }
}

impl Blocking {
    /// Opens a queue on a new reactor, with the default engine of this machine.
    pub fn new(namespace: &dyn Namespace) -> Result<Blocking, BlockError> {
        Self::with_config(namespace, &Config::default())
    }

    /// Opens a queue on a new reactor, with the given engine.
    pub fn with_engine(
        namespace: &dyn Namespace,
        engine: EngineKind,
    ) -> Result<Blocking, BlockError> {
        Self::with_config(namespace, &Config { engine, ..Config::default() })
    }

    fn with_config(namespace: &dyn Namespace, config: &Config) -> Result<Blocking, BlockError> {
        let reactor = Reactor::new(config).map_err(|_| BlockError::NoResources)?;
        let task = reactor.add_task();
        let queue = namespace.open(&reactor, task)?;
        let geometry = namespace.geometry();
        Ok(Blocking { queue, reactor, geometry, ready: Vec::new(), done: Vec::new() })
    }

    /// Returns the sizes and capabilities at the time when the queue was opened.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Fills `data` with the blocks from `lba` on.
    pub fn read(&mut self, lba: u64, data: &mut [u8]) -> Result<(), BlockError> {
        self.transfer(Command::Read, lba, false, Data::Into(data))
    }

    /// Writes `data` to the blocks from `lba` on.
    pub fn write(&mut self, lba: u64, data: &[u8]) -> Result<(), BlockError> {
        self.transfer(Command::Write, lba, false, Data::From(data))
    }

    /// Writes `data` to the blocks from `lba` on. The data is durable on return.
    pub fn write_durable(&mut self, lba: u64, data: &[u8]) -> Result<(), BlockError> {
        self.transfer(Command::Write, lba, true, Data::From(data))
    }

    /// Makes all earlier writes durable.
    pub fn flush(&mut self) -> Result<(), BlockError> {
        self.execute(Op::flush(0)).result
    }

    /// Makes `blocks` blocks from `lba` read as zeroes.
    pub fn write_zeroes(
        &mut self,
        lba: u64,
        blocks: u32,
        deallocate: bool,
    ) -> Result<(), BlockError> {
        self.execute(Op::write_zeroes(lba, blocks, deallocate, 0)).result
    }

    /// Deallocates `blocks` blocks from `lba`.
    pub fn deallocate(&mut self, lba: u64, blocks: u32) -> Result<(), BlockError> {
        self.execute(Op::deallocate(lba, blocks, 0)).result
    }

    /// Submits an operation and waits for it.
    pub fn execute(&mut self, op: Op) -> Completion {
        self.queue.submit(op);
        self.wait();
        assert!(self.done.len() == 1, "one operation completed {} times", self.done.len());
        self.done.pop().expect("the assertion above counted one")
    }

    /// Returns a buffer for [`execute`](Self::execute), with unspecified contents.
    pub fn buffer(&self, blocks: u32) -> Buffer {
        self.reactor.buffers().take(self.geometry.bytes(blocks))
    }

    fn transfer(
        &mut self,
        command: Command,
        lba: u64,
        fua: bool,
        mut data: Data<'_>,
    ) -> Result<(), BlockError> {
        self.check(command, lba, data.len())?;
        let mut submitted = 0;
        let mut error = None;
        loop {
            while error.is_none()
                && submitted < data.len()
                && self.queue.in_flight() < PIECES_IN_FLIGHT
            {
                let length = self.piece_bytes().min(data.len() - submitted);
                let mut buffer = self.reactor.buffers().take(length);
                if let Data::From(bytes) = &data {
                    buffer.copy_from_slice(&bytes[submitted..submitted + length]);
                }
                let (skipped, blocks) = (self.blocks(submitted), self.blocks(length));
                // Use the position of the piece in `data` as the operation's token.
                let op =
                    Op::with(command, lba + skipped, blocks as u32, Some(buffer), submitted as u64);
                self.queue.submit(Op { fua, ..op });
                submitted += length;
            }
            if self.queue.in_flight() == 0 {
                return error.map_or(Ok(()), Err);
            }
            self.wait();
            for done in self.done.drain(..) {
                error = error.or(done.result.err());
                let Some(buffer) = done.buffer else { continue };
                if let Data::Into(bytes) = &mut data {
                    let at = done.token as usize;
                    bytes[at..at + buffer.len()].copy_from_slice(&buffer);
                }
                self.reactor.buffers().give(buffer);
            }
        }
    }

    /// Checks the range of a whole transfer before its first operation. So a transfer that reaches
    /// beyond the end of the namespace changes nothing.
    fn check(&self, command: Command, lba: u64, length: usize) -> Result<(), BlockError> {
        let block_size = self.geometry.block_size as usize;
        assert!(length.is_multiple_of(block_size), "{length} bytes are not whole blocks");
        let whole = Geometry { max_blocks: 0, ..self.geometry };
        whole.check(command, lba, self.blocks(length))
    }

    /// Returns the largest number of bytes in one operation of a transfer.
    fn piece_bytes(&self) -> usize {
        match self.geometry.max_blocks {
            0 => PIECE_BYTES,
            blocks => PIECE_BYTES.min(self.geometry.bytes(blocks)),
        }
    }

    fn blocks(&self, bytes: usize) -> u64 {
        (bytes / self.geometry.block_size as usize) as u64
    }

    /// Waits until at least one operation has completed.
    fn wait(&mut self) {
        loop {
            self.queue.poll(&mut self.done);
            if !self.done.is_empty() {
                return;
            }
            let polled = self.reactor.poll(None::<Duration>, &mut self.ready);
            polled.expect("the event loop failed");
            self.ready.clear();
        }
    }
}
