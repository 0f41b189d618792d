//! [`Rbd`]: a namespace on an image, and its queues.

use std::sync::Arc;

use farblock_block::size::Size;
use farblock_block::{BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId};

use crate::error::{self, OpenError};
use crate::flight::{Flight, Flights, Inbox, Range};
use crate::image::Image;

/// A namespace on an image, with blocks of a given size.
pub struct Rbd {
    view: View,
}

/// The properties of an image that a namespace and its queues share.
#[derive(Clone)]
struct View {
    image: Arc<Image>,
    block_size: u32,
    read_only: bool,
}

impl View {
    /// Returns the geometry with the current capacity.
    fn geometry(&self) -> Geometry {
        let block_size = self.block_size;
        let optimal = self.image.stripe_unit_bytes() / u64::from(block_size);
        Geometry {
            read_only: self.read_only,
            deallocate: true,
            optimal_blocks: u32::try_from(optimal).unwrap_or(0),
            ..Geometry::new(block_size, self.image.bytes() / u64::from(block_size))
        }
    }
}

impl Rbd {
    /// Creates a namespace on the image.
    ///
    /// # Errors
    /// Fails if the size of the image is not a whole number of blocks, or if the image is not
    /// writable and `read_only` is false.
    pub fn new(image: Arc<Image>, block_size: u32, read_only: bool) -> Result<Rbd, OpenError> {
        let bytes = image.bytes();
        if !Geometry::is_block_size(block_size)
            || bytes == 0
            || !bytes.is_multiple_of(u64::from(block_size))
        {
            return Err(error::size(image.name(), bytes, block_size));
        }
        if !read_only && !image.is_writable() {
            return Err(error::read_only(image.name()));
        }
        Ok(Rbd { view: View { image, block_size, read_only } })
    }
}

impl Namespace for Rbd {
    fn geometry(&self) -> Geometry {
        self.view.geometry()
    }

    fn describe(&self) -> String {
        let Geometry { block_size, .. } = self.geometry();
        let size = Size(self.geometry().capacity_bytes());
        format!("Ceph image {} ({size}, {block_size}-byte blocks)", self.view.image.name())
    }

    fn changes(&self) -> Option<&Changes> {
        Some(self.view.image.changes())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(RbdQueue {
            view: self.view.clone(),
            inbox: Arc::new(Inbox::new(reactor.waker(parent))),
            landed: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            in_flight: 0,
        }))
    }
}

struct RbdQueue {
    view: View,
    inbox: Arc<Inbox>,
    /// Finished operations while a poll handles them; otherwise empty. The queue keeps the vector
    /// so that polls do not allocate.
    landed: Flights,
    free: Flights,
    /// The operations that completed without librbd.
    done: Vec<Completion>,
    /// The number of operations in librbd or in the inbox.
    in_flight: usize,
}

impl RbdQueue {
    /// Returns the result of an operation that does not need librbd, because it is invalid or does
    /// nothing. `None`: librbd must execute the operation.
    fn known(geometry: &Geometry, op: &Op) -> Option<Result<(), BlockError>> {
        if let Err(error) = op.check(geometry) {
            return Some(Err(error));
        }
        let is_flush = op.command == Command::Flush;
        let nothing = if is_flush { geometry.read_only } else { op.blocks == 0 };
        nothing.then_some(Ok(()))
    }
}

impl Queue for RbdQueue {
    fn submit(&mut self, op: Op) {
        let geometry = self.view.geometry();
        if let Some(result) = Self::known(&geometry, &op) {
            return self.done.push(op.complete(result));
        }
        let range = match op.command {
            Command::Flush => Range { offset: 0, bytes: 0 },
            _ => Range {
                offset: geometry.offset(op.lba),
                bytes: geometry.offset(u64::from(op.blocks)),
            },
        };
        let flight = self.free.pop();
        let flight = flight
            .unwrap_or_else(|| Flight::new(Arc::clone(&self.view.image), Arc::clone(&self.inbox)));
        match flight.start(op, &range) {
            Ok(()) => self.in_flight += 1,
            Err(mut refused) => {
                let (op, result) = refused.land();
                self.done.push(op.complete(result));
                self.free.push(refused);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
        if self.in_flight == 0 {
            return;
        }
        self.inbox.take(&mut self.landed);
        self.in_flight -= self.landed.len();
        for mut flight in self.landed.drain(..) {
            let (op, result) = flight.land();
            done.push(op.complete(result));
            self.free.push(flight);
        }
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.in_flight
    }
}

impl Drop for RbdQueue {
    fn drop(&mut self) {
        for mut flight in self.inbox.close() {
            flight.land().0.abandon();
        }
    }
}
