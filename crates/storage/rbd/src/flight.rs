//! [`Flight`]: an operation that librbd holds, with its buffer.
//!
//! At submission librbd gets a flight as a raw pointer. It passes the pointer once to
//! [`completed`], on one of librbd's threads. In between nothing else refers to the flight: even if
//! the queue is dropped, buffer and image exist until librbd has finished with them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farblock_block::{BlockError, Command, Op};
use farblock_reactor::Waker;

use crate::error;
use crate::image::Image;
use crate::library::{Completion, Functions, THICK};

/// Flights that librbd does not hold; boxed, since librbd uses their addresses.
pub(crate) type Flights = Vec<Box<Flight>>;

/// Where librbd's threads put a queue's finished flights.
pub(crate) struct Inbox {
    landed: Mutex<Landed>,
    waker: Waker,
}

#[derive(Default)]
struct Landed {
    flights: Flights,
    /// The queue has been dropped.
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox { landed: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Landed> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Swaps the arrived flights with an empty vector.
    pub(crate) fn take(&self, empty: &mut Flights) {
        std::mem::swap(&mut self.lock().flights, empty);
    }

    /// Returns the flights that have arrived; later ones are dropped.
    pub(crate) fn close(&self) -> Flights {
        let mut landed = self.lock();
        landed.is_closed = true;
        std::mem::take(&mut landed.flights)
    }
}

/// Zeroes to write repeatedly, for a library without a command for zeroes.
static ZEROES: [u8; 512] = [0; 512];

/// An operation in flight. The queue keeps a finished flight for its next operation, so that a
/// steady load allocates nothing.
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

    /// Takes out the operation; returns it with its result.
    pub(crate) fn land(&mut self) -> (Op, Result<(), BlockError>) {
        (self.op.take().expect("it has an operation"), self.result)
    }

    /// Passes the operation to librbd. If librbd refuses it, returns the flight with the error as
    /// its result.
    pub(crate) fn start(mut self: Box<Self>, op: Op, range: &Range) -> Result<(), Box<Flight>> {
        let library = self.image.library();
        let command = op.command;
        let image = self.image.handle();
        self.op = Some(op);
        let flight = Box::into_raw(self);
        let mut completion: Completion = std::ptr::null_mut();
        // SAFETY: the callback takes the flight back, once, unless the call below fails.
        let made = unsafe {
            (library.rbd_aio_create_completion)(flight.cast(), completed, &raw mut completion)
        };
        // Nothing touches the flight between a successful call and its completion.
        let code = if made < 0 {
            made
        } else {
            // SAFETY: nothing else has the flight yet, so its buffer is ours.
            let data = unsafe { (*flight).data() };
            // SAFETY: image and buffer live until the completion, in the flight.
            unsafe { call(library, image, command, range, data, completion) }
        };
        if code >= 0 {
            return Ok(());
        }
        if made >= 0 {
            // SAFETY: librbd has not accepted it, and does not call back.
            unsafe { (library.rbd_aio_release)(completion) };
        }
        // SAFETY: made from a box above, and librbd has refused it.
        let mut refused = unsafe { Box::from_raw(flight) };
        refused.result = error::result(command, 0, code as isize);
        Err(refused)
    }

    /// The data's address, for reads and writes.
    fn data(&mut self) -> *mut c_char {
        let op = self.op.as_mut().expect("it has an operation");
        match (op.command, &mut op.buffer) {
            (Command::Read, Some(buffer)) => buffer.as_mut_ptr().cast(),
            (_, Some(buffer)) => buffer.as_ptr().cast_mut().cast(),
            (_, None) => std::ptr::null_mut(),
        }
    }
}

/// # Safety
/// `image` and `data`, of as many bytes as `range` has, stay valid until the completion.
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
    // SAFETY: by the caller's promise; the zeroes live for ever.
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
    // SAFETY: made from a box in `start`, passed to librbd, and returned only once.
    let mut flight: Box<Flight> = unsafe { Box::from_raw(flight.cast()) };
    let library = flight.image.library();
    let op = flight.op.as_ref().expect("it has an operation");
    let (command, bytes) = (op.command, op.buffer.as_ref().map_or(0, |buffer| buffer.len()));
    // SAFETY: the completion is valid until it is released, here.
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
