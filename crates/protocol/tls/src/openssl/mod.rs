//! TLS by OpenSSL, over two memory BIOs.
#![cfg_attr(not(unix), allow(dead_code))]

mod callbacks;
mod library;

use crate::keys::{Named, ServerKeys};
use crate::{Tls, TlsError, hello, limits};
use callbacks::{CALLBACKS, Side, State};
use farblock_secure::{Hash, TlsPsk};
use library::{Bio, Library, Ssl};
use std::ffi::{CStr, c_int, c_ulong};
use std::ptr::NonNull;
use std::sync::Arc;

const ERROR_WANT_READ: c_int = 2;
const ERROR_ZERO_RETURN: c_int = 6;
/// New keys for both directions.
const KEY_UPDATE_REQUESTED: c_int = 1;
/// Bits of an error that say why.
const REASON_BITS: c_ulong = 0x7f_ffff;
const REASON_BINDER: c_ulong = 253;
const REASON_EXTENSION: c_ulong = 110;
/// Reasons from here on are alerts of the peer.
const REASON_ALERTS: c_ulong = 1000;
const ALERT_HANDSHAKE_FAILURE: c_ulong = 40;
const ALERT_ILLEGAL_PARAMETER: c_ulong = 47;
const ALERT_DECRYPT_ERROR: c_ulong = 51;
const ALERT_UNKNOWN_PSK_IDENTITY: c_ulong = 115;
/// Types of records that a peer may begin with (RFC 8446, section 5.1): alert, handshake.
const FIRST_TYPES: std::ops::RangeInclusive<u8> = 21..=22;

/// Whether there is a library for TLS; it is loaded if it was not.
///
/// # Errors
/// What to install.
pub fn available() -> Result<(), TlsError> {
    Library::load(&CALLBACKS).map(drop).map_err(|e| TlsError::Unavailable(e.to_owned()))
}

/// The end that has connected, with a key.
///
/// # Errors
/// If there is no library.
pub fn client(psk: TlsPsk) -> Result<Box<dyn Tls>, TlsError> {
    client_with(psk, limits::RECORDS_PER_KEY)
}

/// As [`client`], with another number of records for each key.
///
/// # Errors
/// As with [`client`].
#[doc(hidden)]
pub fn client_with(psk: TlsPsk, records_per_key: u64) -> Result<Box<dyn Tls>, TlsError> {
    let mut session = Session::new(Side::Client(psk))?;
    session.records = Some(Records { per_key: records_per_key, sealed: 0, opened: 0 });
    Ok(Box::new(session))
}

/// The end that was connected to, with all keys that peers may have.
///
/// # Errors
/// If there is no library.
pub fn server(keys: Arc<ServerKeys>) -> Result<Box<dyn Tls>, TlsError> {
    Ok(Box::new(Session::new(Side::Server { keys, turn: 0 })?))
}

/// `SSL` and what it points to.
struct Handle {
    library: &'static Library,
    ssl: NonNull<Ssl>,
    /// The `SSL`'s own.
    input: NonNull<Bio>,
    /// The `SSL`'s own.
    output: NonNull<Bio>,
    /// What the callbacks work on: nobody else looks at it while a function of OpenSSL's runs.
    state: NonNull<State>,
}

/// See the module's text.
struct Session {
    handle: Handle,
    /// What was fed before the handshake was done.
    first: Vec<u8>,
    /// The library has it as well: a server's has it once the first message is whole, so that a
    /// stranger who does not send its end costs no more than what was sent.
    has_begun: bool,
    /// Plain bytes that fill no record yet.
    staged: Vec<u8>,
    /// How much was done with the keys in use, if this end asks for new ones in time.
    records: Option<Records>,
    has_answered: bool,
    is_done: bool,
    failure: Option<TlsError>,
}

/// Records since the keys are in use. A client asks for new ones, and so has both ends take them. A
/// server does not: Linux has no key updates before 6.14, and hangs up.
struct Records {
    per_key: u64,
    sealed: u64,
    opened: u64,
}

// SAFETY: OpenSSL lets an `SSL` wander between threads as long as one at a time uses it, which
// `&mut` sees to; the same holds for the state, which nobody else has.
unsafe impl Send for Handle {}

impl Handle {
    fn new(side: Side) -> Result<Self, TlsError> {
        let library = Library::load(&CALLBACKS);
        let library = library.map_err(|e| TlsError::Unavailable(e.to_owned()))?;
        let f = &library.functions;
        let is_server = matches!(side, Side::Server { .. });
        let context = if is_server { library.server } else { library.client };
        let none = || TlsError::Unavailable("OpenSSL has no memory".to_owned());
        // SAFETY: the contexts are whole.
        let ssl = NonNull::new(unsafe { (f.SSL_new)(context) }).ok_or_else(none)?;
        let state = NonNull::from(Box::leak(Box::new(State::new(&library.functions, side))));
        // SAFETY: the method is static.
        let bio = || NonNull::new(unsafe { (f.BIO_new)((f.BIO_s_mem)()) });
        let (Some(input), output) = (bio(), bio()) else {
            // SAFETY: nobody else has either.
            unsafe { drop_parts(library, ssl, state) };
            return Err(none());
        };
        let Some(output) = output else {
            // SAFETY: nobody else has any of these.
            unsafe {
                (f.BIO_free)(input.as_ptr());
                drop_parts(library, ssl, state);
            }
            return Err(none());
        };
        // SAFETY: all are whole; the `SSL` owns the BIOs from here on, and the state outlives it.
        unsafe {
            (f.SSL_set_bio)(ssl.as_ptr(), input.as_ptr(), output.as_ptr());
            (f.SSL_set_ex_data)(ssl.as_ptr(), callbacks::STATE_INDEX, state.as_ptr().cast());
            if is_server {
                (f.SSL_set_accept_state)(ssl.as_ptr());
            } else {
                (f.SSL_set_connect_state)(ssl.as_ptr());
                callbacks::choose_suite(f, ssl.as_ptr(), state.as_ref().suite());
            }
        }
        Ok(Self { library, ssl, input, output, state })
    }

    /// What the callbacks have found out.
    fn state(&mut self) -> &mut State {
        // SAFETY: it is whole until the handle is dropped, and no function of OpenSSL's runs.
        unsafe { self.state.as_mut() }
    }

    fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(c_int::MAX as usize) {
            // SAFETY: the BIO is whole, and copies what it is given.
            unsafe {
                let (data, length) = (part.as_ptr().cast(), part.len() as c_int);
                (self.library.functions.BIO_write)(self.input.as_ptr(), data, length);
            }
        }
    }

    fn output_bytes(&self) -> usize {
        // SAFETY: the BIO is whole.
        unsafe { (self.library.functions.BIO_ctrl_pending)(self.output.as_ptr()) }
    }

    fn input_bytes(&self) -> usize {
        // SAFETY: the BIO is whole.
        unsafe { (self.library.functions.BIO_ctrl_pending)(self.input.as_ptr()) }
    }

    fn take_output(&mut self, into: &mut [u8]) -> usize {
        let length = into.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the BIO is whole, and writes no further than it is told.
        let taken = unsafe {
            let data = into.as_mut_ptr().cast();
            (self.library.functions.BIO_read)(self.output.as_ptr(), data, length)
        };
        taken.max(0) as usize
    }

    /// Calls a function that may want more to be fed: gives what it does, or nothing if it does.
    fn call(&mut self, function: impl FnOnce(&Self) -> c_int) -> Result<Option<usize>, Problem> {
        let f = &self.library.functions;
        // SAFETY: it concerns this thread's list of errors.
        unsafe { (f.ERR_clear_error)() };
        let given = function(self);
        if given > 0 {
            return Ok(Some(given as usize));
        }
        // SAFETY: the `SSL` is whole, and the error is of the call above.
        match unsafe { (f.SSL_get_error)(self.ssl.as_ptr(), given) } {
            ERROR_WANT_READ => Ok(None),
            ERROR_ZERO_RETURN => Err(Problem { reason: 0, is_end: true }),
            _ => {
                // SAFETY: it concerns this thread's list of errors.
                let error = unsafe { (f.ERR_get_error)() };
                Err(Problem { reason: error, is_end: false })
            }
        }
    }

    fn words(&self, problem: &Problem) -> String {
        // SAFETY: it gives a static text, or none.
        unsafe {
            let text = (self.library.functions.ERR_reason_error_string)(problem.reason);
            if text.is_null() {
                return "the connection broke off".to_owned();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody else has either; the BIOs are the `SSL`'s.
        unsafe { drop_parts(self.library, self.ssl, self.state) };
    }
}

/// Frees an `SSL`, and then what it points to.
///
/// # Safety
/// Nobody uses either any more.
unsafe fn drop_parts(library: &Library, ssl: NonNull<Ssl>, state: NonNull<State>) {
    // SAFETY: by this function's contract; the state comes out of a box.
    unsafe {
        (library.functions.SSL_free)(ssl.as_ptr());
        drop(Box::from_raw(state.as_ptr()));
    }
}

/// What OpenSSL says of a failure.
struct Problem {
    reason: c_ulong,
    is_end: bool,
}

impl Session {
    fn new(side: Side) -> Result<Self, TlsError> {
        let has_begun = matches!(side, Side::Client(_));
        Ok(Self {
            handle: Handle::new(side)?,
            first: Vec::new(),
            has_begun,
            staged: Vec::new(),
            records: None,
            has_answered: false,
            is_done: false,
            failure: None,
        })
    }

    fn fail<T>(&mut self, error: TlsError) -> Result<T, TlsError> {
        self.failure = Some(error.clone());
        Err(error)
    }

    fn check(&self) -> Result<(), TlsError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Begins again with the next key that the identity may stand for: an identity without a
    /// digest does not tell which was meant. False if there is none, or it is too late.
    fn try_next_key(&mut self, problem: &Problem) -> Result<bool, TlsError> {
        let is_binder = problem.reason & REASON_BITS == REASON_BINDER;
        if !is_binder || self.has_answered {
            return Ok(false);
        }
        let Some(side) = self.handle.state().next_turn() else { return Ok(false) };
        self.handle = Handle::new(side)?;
        let first = std::mem::take(&mut self.first);
        self.handle.feed(&first);
        self.first = first;
        Ok(true)
    }

    /// Why the handshake has failed.
    fn handshake_error(&mut self, problem: &Problem) -> TlsError {
        let reason = problem.reason & REASON_BITS;
        let words = self.handle.words(problem);
        let state = self.handle.state();
        if let Some(offered) = state.refused.take() {
            return TlsError::UnknownIdentity(offered);
        }
        match (reason, &state.chosen) {
            (REASON_EXTENSION, Some(chosen)) if chosen.psk.hash != Hash::Sha256 => {
                let key = "GnuTLS before 3.8.11, and with it the kernel's tlshd, fails so with a \
                           key for SHA-384: give both ends one for SHA-256";
                TlsError::Broken(format!("{words}; {key}"))
            }
            (REASON_BINDER, Some(chosen)) => {
                TlsError::WrongKey(hello::shown(chosen.psk.identity.as_bytes()))
            }
            (REASON_ALERTS.., _) => TlsError::Refused(alert(reason - REASON_ALERTS, words)),
            _ => TlsError::Broken(words),
        }
    }

    fn transfer_error(&self, problem: &Problem) -> TlsError {
        match problem.reason & REASON_BITS {
            _ if problem.is_end => TlsError::Closed,
            reason @ REASON_ALERTS.. => {
                TlsError::Refused(alert(reason - REASON_ALERTS, self.handle.words(problem)))
            }
            _ => TlsError::Broken(self.handle.words(problem)),
        }
    }

    /// Asks for new keys once there was enough done with these; that goes ahead of what is sealed
    /// next.
    fn update_keys(&mut self) -> Result<(), TlsError> {
        let Some(records) = &mut self.records else { return Ok(()) };
        records.sealed += 1;
        if records.sealed.max(records.opened) <= records.per_key {
            return Ok(());
        }
        // This record is the first with the new one.
        (records.sealed, records.opened) = (1, 0);
        let handle = &self.handle;
        // SAFETY: the `SSL` is whole.
        let asked = unsafe {
            (handle.library.functions.SSL_key_update)(handle.ssl.as_ptr(), KEY_UPDATE_REQUESTED)
        };
        match asked {
            1 => Ok(()),
            _ => self.fail(TlsError::Broken("the keys cannot be updated".to_owned())),
        }
    }

    fn encrypt(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        self.update_keys()?;
        let written = self.handle.call(|handle| {
            // SAFETY: the `SSL` is whole, and reads no further than it is told.
            unsafe {
                let (data, length) = (bytes.as_ptr().cast(), bytes.len() as c_int);
                (handle.library.functions.SSL_write)(handle.ssl.as_ptr(), data, length)
            }
        });
        match written {
            Ok(Some(count)) if count == bytes.len() => Ok(()),
            Ok(_) => self.fail(TlsError::Broken("a record was not taken".to_owned())),
            Err(problem) => {
                let error = self.transfer_error(&problem);
                self.fail(error)
            }
        }
    }
}

/// An alert of the peer's, as far as more can be said of it than its name.
fn alert(number: c_ulong, name: String) -> String {
    match number {
        ALERT_UNKNOWN_PSK_IDENTITY => "it does not know the identity that was offered".to_owned(),
        ALERT_HANDSHAKE_FAILURE => {
            format!("most often it does not know the identity that was offered ({name})")
        }
        ALERT_ILLEGAL_PARAMETER | ALERT_DECRYPT_ERROR => {
            format!("most often it has another key for the identity ({name})")
        }
        _ => name,
    }
}

impl Tls for Session {
    fn feed(&mut self, bytes: &[u8]) {
        if !self.is_done && self.failure.is_none() {
            self.first.reserve_exact(bytes.len().min(limits::HANDSHAKE_BYTES));
            self.first.extend_from_slice(bytes);
            let is_tls = self.first.first().is_none_or(|first| FIRST_TYPES.contains(first));
            if !is_tls {
                self.failure = Some(TlsError::NotTls);
            } else if self.first.len() > limits::HANDSHAKE_BYTES {
                let much = "the handshake is too long".to_owned();
                self.failure = Some(TlsError::Broken(much));
            }
        }
        if self.failure.is_none() && self.has_begun {
            self.handle.feed(bytes);
        }
    }

    fn handshake(&mut self) -> Result<bool, TlsError> {
        self.check()?;
        if !self.has_begun {
            if !hello::has_come(&self.first) {
                return Ok(false);
            }
            self.has_begun = true;
            self.handle.feed(&self.first);
        }
        while !self.is_done {
            let step = self.handle.call(|handle| {
                // SAFETY: the `SSL` is whole.
                unsafe { (handle.library.functions.SSL_do_handshake)(handle.ssl.as_ptr()) }
            });
            match step {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => {
                    let handle = &self.handle;
                    let f = &handle.library.functions;
                    // SAFETY: the `SSL` is whole.
                    if unsafe { (f.SSL_session_reused)(handle.ssl.as_ptr()) } != 1 {
                        return self.fail(TlsError::Broken("it is without a key".to_owned()));
                    }
                    self.is_done = true;
                    self.first = Vec::new();
                }
                Err(problem) => {
                    if !self.try_next_key(&problem)? {
                        let error = self.handshake_error(&problem);
                        return self.fail(error);
                    }
                }
            }
        }
        Ok(true)
    }

    fn peer(&self) -> Option<&Arc<Named>> {
        // SAFETY: it is whole until the handle is dropped, and no function of OpenSSL's runs.
        let state = unsafe { self.handle.state.as_ref() };
        state.chosen.as_ref().filter(|_| self.is_done)
    }

    fn readable_bytes(&self) -> usize {
        // SAFETY: the `SSL` is whole.
        let pending = unsafe {
            (self.handle.library.functions.SSL_pending)(self.handle.ssl.as_ptr()).max(0) as usize
        };
        // A record that has not come as a whole is not in the BIO any more.
        self.handle.input_bytes() + pending + limits::RECORD_BYTES
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        self.check()?;
        let read = self.handle.call(|handle| {
            // SAFETY: the `SSL` is whole, and writes no further than it is told.
            unsafe {
                let length = into.len().min(c_int::MAX as usize) as c_int;
                let data = into.as_mut_ptr().cast();
                (handle.library.functions.SSL_read)(handle.ssl.as_ptr(), data, length)
            }
        });
        if self.handle.output_bytes() > limits::UNASKED_BYTES {
            return self.fail(TlsError::Broken("it takes no answers to its updates".to_owned()));
        }
        match read {
            Ok(count) => {
                if let (Some(records), Some(_)) = (&mut self.records, count) {
                    records.opened += 1;
                }
                Ok(count.unwrap_or(0))
            }
            Err(problem) => {
                let error = self.transfer_error(&problem);
                self.fail(error)
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        self.check()?;
        while !bytes.is_empty() {
            if self.staged.is_empty() && bytes.len() >= limits::RECORD_BYTES {
                let (record, rest) = bytes.split_at(limits::RECORD_BYTES);
                self.encrypt(record)?;
                bytes = rest;
                continue;
            }
            let room = limits::RECORD_BYTES - self.staged.len();
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            self.staged.extend_from_slice(part);
            bytes = rest;
            if self.staged.len() == limits::RECORD_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TlsError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let mut staged = std::mem::take(&mut self.staged);
        let encrypted = self.encrypt(&staged);
        staged.clear();
        self.staged = staged;
        encrypted
    }

    fn output_bytes(&self) -> usize {
        self.handle.output_bytes()
    }

    fn output(&mut self, into: &mut [u8]) -> usize {
        self.has_answered |= self.handle.output_bytes() > 0;
        self.handle.take_output(into)
    }
}
