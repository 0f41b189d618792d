//! [`Flight`]: an operation in librbd, with its buffer.
//!
//! A flight is one operation while librbd executes it. At submission, librbd gets the flight as a
//! raw pointer. Later, a thread of librbd calls [`completed`] once with this pointer. Until
//! then, only librbd refers to the flight. Even if the queue is dropped, the buffer and the
//! image exist until librbd no longer uses them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farblock_block::{BlockError, Command, Op};
use farblock_reactor::Waker;

use crate::error;
use crate::image::Image;
use crate::library::{Completion, Functions, THICK};

/// Flights that are not in librbd. Each is boxed, because librbd keeps its address.
pub(crate) type Flights = Vec<Box<Flight>>;

/// The finished flights of a queue. librbd's threads add them, and the queue takes them.
pub(crate) struct Inbox {
    landed: Mutex<Landed>,
    waker: Waker,
}

#[derive(Default)]
struct Landed {
    flights: Flights,
    /// Whether the queue has been dropped.
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox { landed: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Landed> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the arrived flights to `empty`, which must be an empty vector.
    pub(crate) fn take(&self, empty: &mut Flights) {
        std::mem::swap(&mut self.lock().flights, empty);
    }

    /// Returns the flights that have arrived. From now on, the inbox drops the flights that it
    /// gets.
    pub(crate) fn close(&self) -> Flights {
        let mut landed = self.lock();
        landed.is_closed = true;
        std::mem::take(&mut landed.flights)
    }
}

/// Zeroes for repeated writes, if the library has no command for zeroes.
static ZEROES: [u8; 512] = [0; 512];

/// An operation in flight. The queue reuses a finished flight for its next operation, so a steady
/// load allocates nothing.
pub(crate) struct Flight {
    op: Option<Op>,
    image: Arc<Image>,
    inbox: Arc<Inbox>,
    result: Result<(), BlockError>,
}

/// The range of an operation, in bytes.
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Flight {
    pub(crate) fn new(image: Arc<Image>, inbox: Arc<Inbox>) -> Box<Flight> {
        Box::new(Flight { op: None, image, inbox, result: Ok(()) })
    }

    /// Removes the operation and returns it with its result.
    pub(crate) fn land(&mut self) -> (Op, Result<(), BlockError>) {
        (self.op.take().expect("a flight has an operation"), self.result)
    }

    /// Passes the operation to librbd. If librbd refuses the operation, returns the flight with the
    /// error as its result.
    pub(crate) fn start(mut self: Box<Self>, op: Op, range: &Range) -> Result<(), Box<Flight>> {
        let library = self.image.library();
        let command = op.command;
        let image = self.image.handle();
        self.op = Some(op);
        let flight = Box::into_raw(self);
        let mut completion: Completion = std::ptr::null_mut();
        // SAFETY: librbd calls the callback once for each accepted operation, and the callback then
        // owns the flight. If the call below fails, librbd does not call the callback.
        let made = unsafe {
            (library.rbd_aio_create_completion)(flight.cast(), completed, &raw mut completion)
        };
        // No code accesses the flight between a successful call and its completion.
        let code = if made < 0 {
            made
        } else {
            // SAFETY: no other code has the flight yet, so this code may access its buffer.
            let data = unsafe { (*flight).data() };
            // SAFETY: the flight owns the image and the buffer, which live until the completion.
            unsafe { call(library, image, command, range, data, completion) }
        };
        if code >= 0 {
            return Ok(());
        }
        if made >= 0 {
            // SAFETY: librbd has not accepted the operation, and does not call the callback.
            unsafe { (library.rbd_aio_release)(completion) };
        }
        // SAFETY: the pointer was made from a box above, and librbd has refused it.
        let mut refused = unsafe { Box::from_raw(flight) };
        refused.result = error::result(command, 0, code as isize);
        Err(refused)
    }

    /// Returns the address of the data, for reads and writes.
    fn data(&mut self) -> *mut c_char {
        let op = self.op.as_mut().expect("a flight has an operation");
        match (op.command, &mut op.buffer) {
            (Command::Read, Some(buffer)) => buffer.as_mut_ptr().cast(),
            (_, Some(buffer)) => buffer.as_ptr().cast_mut().cast(),
            (_, None) => std::ptr::null_mut(),
        }
    }
}

/// # Safety
/// `image` and `data` must stay valid until the completion. `data` must have as many bytes as
/// `range`.
unsafe fn call(
    library: &Functions,
    image: crate::library::ImageHandle,
    command: Command,
    range: &Range,
    data: *mut c_char,
    completion: Completion,
) -> c_int {
    let Range { offset, bytes } = *range;
    let Ok(length) = usize::try_from(bytes) else { return -error::EINVAL };
    // SAFETY: the caller guarantees that `image` and `data` are valid. The zeroes are static.
    unsafe {
        match command {
            Command::Read => (library.rbd_aio_read)(image, offset, length, data, completion),
            Command::Write => (library.rbd_aio_write)(image, offset, length, data, completion),
            Command::Flush => (library.rbd_aio_flush)(image, completion),
            Command::Deallocate => (library.rbd_aio_discard)(image, offset, bytes, completion),
            Command::WriteZeroes { deallocate } => match library.rbd_aio_write_zeroes {
                Some(write_zeroes) => {
                    let thick = if deallocate { 0 } else { THICK };
                    write_zeroes(image, offset, length, completion, thick, 0)
                }
                None => {
                    let zeroes = ZEROES.as_ptr().cast();
                    let same = library.rbd_aio_writesame;
                    same(image, offset, length, zeroes, ZEROES.len(), completion, 0)
                }
            },
        }
    }
}

/// The callback that librbd calls on one of its threads.
unsafe extern "C" fn completed(completion: Completion, flight: *mut c_void) {
    // SAFETY: `start` made the pointer from a box and passed it to librbd, which returns it only
    // once.
    let mut flight: Box<Flight> = unsafe { Box::from_raw(flight.cast()) };
    let library = flight.image.library();
    let op = flight.op.as_ref().expect("a flight has an operation");
    let (command, bytes) = (op.command, op.buffer.as_ref().map_or(0, |buffer| buffer.len()));
    // SAFETY: the completion is valid until this code releases it.
    let code = unsafe {
        let code = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        code
    };
    flight.result = error::result(command, bytes, code);
    let inbox = Arc::clone(&flight.inbox);
    let mut landed = inbox.lock();
    if landed.is_closed {
        drop(landed);
        flight.land().0.abandon();
        return;
    }
    landed.flights.push(flight);
    drop(landed);
    inbox.waker.wake();
}
