//! Event loops: io_uring on Linux, a portable readiness loop everywhere

mod batch;
mod buffer;
mod config;
mod event;
mod pool;
mod reactor;
#[allow(dead_code, reason = "used by the engines to come")]
mod slab;
#[allow(dead_code, reason = "used by the engines to come")]
mod waker;

pub use batch::SendBatch;
pub use buffer::{ALIGNMENT_BYTES, Buffer};
pub use config::{Config, EngineKind, ParseEngineError};
pub use event::{Event, FileId, FileOp, ListenerId, StreamId, TaskId};
pub use pool::BufferPool;
pub use reactor::Reactor;
pub use waker::Waker;
