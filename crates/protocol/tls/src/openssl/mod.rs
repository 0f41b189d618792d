//! Runs the handshake with OpenSSL, over two memory BIOs. After the handshake, this crate's own
//! records use the keys of the handshake.

mod callbacks;
mod files;
mod library;
#[cfg(all(feature = "sim", unix))]
mod seeded;

use crate::keys::ServerKeys;
use crate::named::Named;
use crate::records::Records;
use crate::{Tls, TlsError, hello, limits};
use callbacks::{CALLBACKS, Side, State};
use farblock_secure::{Hash, TlsPsk};
use library::{Bio, Library, Ssl};
#[cfg(all(feature = "sim", unix))]
pub use seeded::draw_from;
use std::ffi::{CStr, c_int, c_ulong};
use std::ptr::NonNull;
use std::sync::Arc;

const ERROR_WANT_READ: c_int = 2;
/// The bits of an error code that contain its reason.
const REASON_BITS: c_ulong = 0x7f_ffff;
const REASON_BINDER: c_ulong = 253;
const REASON_EXTENSION: c_ulong = 110;
/// The reason that OpenSSL reports if no key matches: it then looks for a certificate, and this end
/// has none.
const REASON_SIGNATURE: c_ulong = 118;
const REASON_CIPHER: c_ulong = 193;
/// A reason with this number or a higher one stands for an alert from the peer.
const REASON_ALERTS: c_ulong = 1000;
const ALERT_HANDSHAKE_FAILURE: c_ulong = 40;
const ALERT_ILLEGAL_PARAMETER: c_ulong = 47;
const ALERT_DECRYPT_ERROR: c_ulong = 51;
const ALERT_UNKNOWN_PSK_IDENTITY: c_ulong = 115;
/// The valid types of a peer's first record (RFC 8446, section 5.1): alert, handshake.
const FIRST_TYPES: std::ops::RangeInclusive<u8> = 21..=22;

/// The codes of record sizes that a client may request: 512, 1024, 2048 or 4096 bytes.
const SHORT_RECORDS: std::ops::RangeInclusive<u8> = 1..=4;

/// Checks that the system has a TLS library. Loads the library on the first call.
///
/// # Errors
/// Fails if there is no library. The error names the package to install.
pub fn available() -> Result<(), TlsError> {
    Library::load(&CALLBACKS).map(drop).map_err(|e| TlsError::Unavailable(e.to_owned()))
}

/// Creates the client end of a connection. Its key is `psk`.
///
/// # Errors
/// Fails if there is no library.
pub fn client(psk: TlsPsk) -> Result<Box<dyn Tls>, TlsError> {
    client_with(psk, limits::RECORDS_PER_KEY)
}

/// Like [`client`], but asks for a key update after `records_per_key` records.
///
/// # Errors
/// Fails for the same reasons as [`client`].
#[doc(hidden)]
pub fn client_with(psk: TlsPsk, records_per_key: u64) -> Result<Box<dyn Tls>, TlsError> {
    let mut session = Session::new(Side::Client(psk))?;
    session.per_key = Some(records_per_key);
    Ok(Box::new(session))
}

/// Creates the server end of a connection. `keys` are the keys that it accepts from clients.
///
/// # Errors
/// Fails if there is no library.
pub fn server(keys: Arc<ServerKeys>) -> Result<Box<dyn Tls>, TlsError> {
    server_with(keys, limits::SERVER_RECORDS_PER_KEY)
}

/// Like [`server`], but asks for a key update after `records_per_key` records.
///
/// # Errors
/// Fails for the same reasons as [`server`].
#[doc(hidden)]
pub fn server_with(keys: Arc<ServerKeys>, records_per_key: u64) -> Result<Box<dyn Tls>, TlsError> {
    let mut session = Session::new(Side::Server { keys: Arc::clone(&keys), left: Vec::new() })?;
    (session.per_key, session.keys) = (Some(records_per_key), Some(keys));
    Ok(Box::new(session))
}

/// An `SSL` and everything that it points to.
struct Handle {
    library: &'static Library,
    ssl: NonNull<Ssl>,
    /// The bytes from the network, for OpenSSL. The `SSL` owns this BIO.
    input: NonNull<Bio>,
    /// The bytes from OpenSSL, for the network. The `SSL` owns this BIO.
    output: NonNull<Bio>,
    /// The state of the callbacks. Nothing else accesses it while a function of OpenSSL runs.
    state: NonNull<State>,
}

/// A connection: its handshake, and then its records.
struct Session {
    stage: Stage,
    /// The bytes that were fed before the handshake was done.
    first: Vec<u8>,
    /// Whether OpenSSL also has the bytes in `first`. A server passes them to OpenSSL only when the
    /// first message is complete. So a peer that withholds the end of this message costs little
    /// memory.
    has_begun: bool,
    is_client: bool,
    /// The number of records with one key after which this end asks for a key update.
    per_key: Option<u64>,
    /// The keys of a server. They also record the hosts that the server must not ask for a key
    /// update.
    keys: Option<Arc<ServerKeys>>,
    has_answered: bool,
    failure: Option<TlsError>,
}

enum Stage {
    Handshake(Handle),
    Open { records: Box<Records>, peer: Option<Arc<Named>> },
}

// SAFETY: an `SSL` may move between threads if only one thread at a time uses it. `&mut` guarantees
// this. The same applies to the state, which only the handle owns.
unsafe impl Send for Handle {}

impl Handle {
    fn new(side: Side) -> Result<Self, TlsError> {
        let library = Library::load(&CALLBACKS);
        let library = library.map_err(|e| TlsError::Unavailable(e.to_owned()))?;
        let f = &library.functions;
        let is_server = matches!(side, Side::Server { .. });
        let context = if is_server { library.server } else { library.client };
        let none = || TlsError::Unavailable("OpenSSL is out of memory".to_owned());
        // SAFETY: the contexts are valid.
        let ssl = NonNull::new(unsafe { (f.SSL_new)(context) }).ok_or_else(none)?;
        let state = NonNull::from(Box::leak(Box::new(State::new(&library.functions, side))));
        // SAFETY: the method is static.
        let bio = || NonNull::new(unsafe { (f.BIO_new)((f.BIO_s_mem)()) });
        let (Some(input), output) = (bio(), bio()) else {
            // SAFETY: nothing else uses the `SSL` or the state.
            unsafe { drop_parts(library, ssl, state) };
            return Err(none());
        };
        let Some(output) = output else {
            // SAFETY: nothing else uses the BIO, the `SSL` or the state.
            unsafe {
                (f.BIO_free)(input.as_ptr());
                drop_parts(library, ssl, state);
            }
            return Err(none());
        };
        let handle = Self { library, ssl, input, output, state };
        // SAFETY: all pointers are valid. From here on, the `SSL` owns the BIOs, and the state
        // outlives the `SSL`.
        let has_suite = unsafe {
            (f.SSL_set_bio)(ssl.as_ptr(), input.as_ptr(), output.as_ptr());
            (f.SSL_set_ex_data)(ssl.as_ptr(), callbacks::STATE_INDEX, state.as_ptr().cast());
            if is_server {
                (f.SSL_set_accept_state)(ssl.as_ptr());
                // A server cannot choose the cipher suite before it knows the key.
                true
            } else {
                (f.SSL_set_connect_state)(ssl.as_ptr());
                callbacks::choose_suite(f, ssl.as_ptr(), state.as_ref().suite())
            }
        };
        let none = || TlsError::Unavailable("OpenSSL has no cipher suite for the key".to_owned());
        has_suite.then_some(handle).ok_or_else(none)
    }

    /// Returns the data and results of the callbacks.
    fn state(&mut self) -> &mut State {
        // SAFETY: the state is valid until the handle is dropped, and no function of OpenSSL runs.
        unsafe { self.state.as_mut() }
    }

    fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(c_int::MAX as usize) {
            // SAFETY: the BIO is valid, and copies the bytes.
            unsafe {
                let (data, length) = (part.as_ptr().cast(), part.len() as c_int);
                (self.library.functions.BIO_write)(self.input.as_ptr(), data, length);
            }
        }
    }

    fn output_bytes(&self) -> usize {
        // SAFETY: the BIO is valid.
        unsafe { (self.library.functions.BIO_ctrl_pending)(self.output.as_ptr()) }
    }

    /// Removes and returns the fed bytes that OpenSSL has not used.
    fn take_input(&mut self) -> Vec<u8> {
        // SAFETY: the BIO is valid.
        let count = unsafe { (self.library.functions.BIO_ctrl_pending)(self.input.as_ptr()) };
        let mut left = vec![0; count];
        let taken = self.take(self.input, &mut left);
        left.truncate(taken);
        left
    }

    fn take_output(&mut self, into: &mut [u8]) -> usize {
        self.take(self.output, into)
    }

    fn take(&mut self, from: NonNull<Bio>, into: &mut [u8]) -> usize {
        let length = into.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the BIO is valid, and writes at most the given length.
        let taken = unsafe {
            let data = into.as_mut_ptr().cast();
            (self.library.functions.BIO_read)(from.as_ptr(), data, length)
        };
        taken.max(0) as usize
    }

    /// Continues the handshake. Returns false if it needs more bytes.
    fn shake(&mut self) -> Result<bool, Problem> {
        let f = &self.library.functions;
        // SAFETY: the call affects only this thread's list of errors.
        unsafe { (f.ERR_clear_error)() };
        // SAFETY: the `SSL` is valid.
        let given = unsafe { (f.SSL_do_handshake)(self.ssl.as_ptr()) };
        if given > 0 {
            return Ok(true);
        }
        // SAFETY: the `SSL` is valid, and the error belongs to the call above.
        match unsafe { (f.SSL_get_error)(self.ssl.as_ptr(), given) } {
            ERROR_WANT_READ => Ok(false),
            // SAFETY: the call affects only this thread's list of errors.
            _ => Err(Problem { reason: unsafe { (f.ERR_get_error)() } }),
        }
    }

    /// Creates the record layer after a finished handshake, and queues the last output of the
    /// handshake.
    fn records(&mut self, is_client: bool, per_key: Option<u64>) -> Result<Records, TlsError> {
        let broken = |words: &str| TlsError::Broken(words.to_owned());
        // SAFETY: the `SSL` is valid.
        let by_key = unsafe { (self.library.functions.SSL_session_reused)(self.ssl.as_ptr()) };
        if by_key != 1 {
            return Err(broken("the handshake used no pre-shared key"));
        }
        let hash = self.state().suite();
        let secrets = std::mem::take(&mut self.state().secrets);
        let records = Records::new(hash, secrets, per_key, is_client);
        let mut records = records.ok_or_else(|| broken("OpenSSL reports no keys"))?;
        if let Some(most_bytes) = self.short_record_bytes() {
            records.shorten(most_bytes);
        }
        let mut last = vec![0; self.output_bytes()];
        self.take_output(&mut last);
        records.say(&last);
        records.feed(&self.take_input());
        Ok(records)
    }

    /// Returns the maximum number of bytes in a record, if the client has requested short records
    /// and OpenSSL has agreed (RFC 6066, section 4).
    fn short_record_bytes(&self) -> Option<usize> {
        let f = &self.library.functions;
        // SAFETY: the `SSL` is valid, and its session lives as long.
        let mode = unsafe {
            let session = (f.SSL_get_session)(self.ssl.as_ptr());
            if session.is_null() { 0 } else { (f.SSL_SESSION_get_max_fragment_length)(session) }
        };
        SHORT_RECORDS.contains(&mode).then(|| 256 << mode)
    }

    fn words(&self, problem: &Problem) -> String {
        // SAFETY: the call returns a static text, or null.
        unsafe {
            let text = (self.library.functions.ERR_reason_error_string)(problem.reason);
            if text.is_null() {
                return "the connection was lost".to_owned();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the `SSL` or the state; the `SSL` owns the BIOs.
        unsafe { drop_parts(self.library, self.ssl, self.state) };
    }
}

/// Frees an `SSL`, and then everything that it points to.
///
/// # Safety
/// Nothing uses `ssl` or `state` any more.
unsafe fn drop_parts(library: &Library, ssl: NonNull<Ssl>, state: NonNull<State>) {
    // SAFETY: by this function's contract; the state comes out of a box.
    unsafe {
        (library.functions.SSL_free)(ssl.as_ptr());
        drop(Box::from_raw(state.as_ptr()));
    }
}

/// The error code of an OpenSSL failure.
struct Problem {
    reason: c_ulong,
}

impl Session {
    fn new(side: Side) -> Result<Self, TlsError> {
        let is_client = matches!(side, Side::Client(_));
        Ok(Self {
            stage: Stage::Handshake(Handle::new(side)?),
            first: Vec::new(),
            has_begun: is_client,
            is_client,
            per_key: None,
            keys: None,
            has_answered: false,
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

    /// Continues the handshake. Returns true if it is done, and false if it has restarted with
    /// another key. Returns `None` if it needs more bytes.
    fn step(&mut self) -> Result<Option<bool>, TlsError> {
        let Stage::Handshake(handle) = &mut self.stage else { return Ok(Some(true)) };
        match handle.shake() {
            Ok(false) => Ok(None),
            Ok(true) => {
                let peer = handle.state().chosen.clone();
                let mut per_key = self.per_key;
                if let (Some(keys), Some(named)) = (&self.keys, &peer) {
                    per_key = per_key.filter(|_| keys.may_ask(&named.host));
                    keys.was_right(named);
                }
                let records = Box::new(handle.records(self.is_client, per_key)?);
                self.stage = Stage::Open { records, peer };
                self.first = Vec::new();
                Ok(Some(true))
            }
            Err(problem) => match next_key(handle, &problem, &self.first, self.has_answered)? {
                Some(next) => {
                    self.stage = Stage::Handshake(next);
                    Ok(Some(false))
                }
                None => Err(handshake_error(handle, &problem)),
            },
        }
    }
}

/// Restarts the handshake with the next key that the identity may denote, since an identity without
/// a digest does not select a key. Returns `None` if no key is left, or if the server has already
/// answered.
fn next_key(
    handle: &mut Handle,
    problem: &Problem,
    first: &[u8],
    has_answered: bool,
) -> Result<Option<Handle>, TlsError> {
    let is_binder = problem.reason & REASON_BITS == REASON_BINDER;
    if !is_binder || has_answered {
        return Ok(None);
    }
    let Some(side) = handle.state().next_turn() else { return Ok(None) };
    let mut next = Handle::new(side)?;
    next.feed(first);
    Ok(Some(next))
}

/// Returns the reason why the handshake has failed.
fn handshake_error(handle: &mut Handle, problem: &Problem) -> TlsError {
    let reason = problem.reason & REASON_BITS;
    let words = handle.words(problem);
    let state = handle.state();
    if let Some((offered, known)) = state.refused.take() {
        return TlsError::UnknownIdentity { offered, known };
    }
    match (reason, &state.chosen) {
        (REASON_EXTENSION, Some(chosen)) if chosen.psk.hash != Hash::Sha256 => {
            let key = "GnuTLS before 3.8.11, and with it the kernel's tlshd, fails like this with \
                a key for SHA-384: give both ends a key for SHA-256";
            TlsError::Broken(format!("{words}; {key}"))
        }
        (REASON_CIPHER, Some(chosen)) => {
            let (hash, suite) = match chosen.psk.hash {
                Hash::Sha256 => ("SHA-256", "TLS_AES_128_GCM_SHA256"),
                _ => ("SHA-384", "TLS_AES_256_GCM_SHA384"),
            };
            TlsError::Broken(format!(
                "the key for the peer's identity is a key for {hash}, but the peer does not offer \
                 the cipher suite {suite}"
            ))
        }
        (REASON_SIGNATURE, Some(_)) => TlsError::Broken(
            "the peer does not offer its key with a fresh key exchange (psk_dhe_ke), which is \
             required"
                .to_owned(),
        ),
        (REASON_BINDER, Some(chosen)) => {
            let identity = hello::shown(chosen.psk.identity.as_bytes());
            match state.too_many() {
                Some(keys) => TlsError::OtherKeys { identity, keys },
                None => TlsError::WrongKey(identity),
            }
        }
        (REASON_ALERTS.., _) => TlsError::Refused(alert(reason - REASON_ALERTS, words)),
        _ => TlsError::Broken(words),
    }
}

/// Explains an alert from the peer, if the name of the alert is not clear enough.
fn alert(number: c_ulong, name: String) -> String {
    match number {
        ALERT_UNKNOWN_PSK_IDENTITY => "it does not know the offered identity".to_owned(),
        ALERT_HANDSHAKE_FAILURE => {
            format!("usually because it does not know the offered identity ({name})")
        }
        ALERT_ILLEGAL_PARAMETER | ALERT_DECRYPT_ERROR => {
            format!("usually because it has another key for the identity ({name})")
        }
        _ => name,
    }
}

impl Drop for Session {
    /// If the host has closed or refused the connection after a request for a key update, records
    /// that the host does not support updates. Otherwise its next connection would end in the same
    /// way. The Linux host does not support updates.
    fn drop(&mut self) {
        let hung_up = matches!(self.failure, None | Some(TlsError::Refused(_)));
        if let (Some(keys), Stage::Open { records, peer: Some(named) }) = (&self.keys, &self.stage)
            && hung_up
            && records.has_asked()
        {
            keys.is_unable(&named.host);
        }
    }
}

impl Tls for Session {
    fn feed(&mut self, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        let handle = match &mut self.stage {
            Stage::Open { records, .. } => return records.feed(bytes),
            Stage::Handshake(handle) => handle,
        };
        self.first.reserve_exact(bytes.len().min(limits::HANDSHAKE_BYTES));
        self.first.extend_from_slice(bytes);
        let is_tls = self.first.first().is_none_or(|first| FIRST_TYPES.contains(first));
        if !is_tls {
            self.failure = Some(TlsError::NotTls);
        } else if self.first.len() > limits::HANDSHAKE_BYTES {
            self.failure = Some(TlsError::Broken("the handshake is too long".to_owned()));
        } else if self.has_begun {
            handle.feed(bytes);
        }
    }

    fn handshake(&mut self) -> Result<bool, TlsError> {
        self.check()?;
        if let Stage::Handshake(handle) = &mut self.stage
            && !self.has_begun
        {
            if !hello::has_come(&self.first) {
                return Ok(false);
            }
            self.has_begun = true;
            handle.feed(&self.first);
        }
        loop {
            match self.step() {
                Ok(Some(true)) => return Ok(true),
                Ok(Some(false)) => {}
                Ok(None) => return Ok(false),
                Err(error) => return self.fail(error),
            }
        }
    }

    fn peer(&self) -> Option<&Arc<Named>> {
        match &self.stage {
            Stage::Open { peer, .. } => peer.as_ref(),
            Stage::Handshake(_) => None,
        }
    }

    fn openable_bytes(&self, sealed_bytes: usize) -> usize {
        match &self.stage {
            Stage::Open { records, .. } => records.openable_bytes(sealed_bytes),
            Stage::Handshake(_) => 0,
        }
    }

    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>) {
        if let Some(error) = &self.failure {
            return (0, Some(error.clone()));
        }
        match &mut self.stage {
            Stage::Open { records, .. } => {
                let (filled, ended) = records.open(sealed, plain);
                self.failure.clone_from(&ended);
                (filled, ended)
            }
            Stage::Handshake(_) => (0, None),
        }
    }

    fn open_some(&mut self, sealed: &mut &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>) {
        if let Some(error) = &self.failure {
            return (0, Some(error.clone()));
        }
        match &mut self.stage {
            Stage::Open { records, .. } => {
                let (filled, ended) = records.open_some(sealed, plain);
                self.failure.clone_from(&ended);
                (filled, ended)
            }
            Stage::Handshake(_) => (0, None),
        }
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        match &self.stage {
            Stage::Open { records, .. } => records.sealed_bytes(plain_bytes),
            Stage::Handshake(handle) => handle.output_bytes(),
        }
    }

    fn seal(
        &mut self,
        plain: &mut dyn Iterator<Item = &[u8]>,
        into: &mut [u8],
    ) -> Result<usize, TlsError> {
        let sealed = match (&mut self.stage, &self.failure) {
            (Stage::Open { records, .. }, None) => records.seal(plain, into),
            // Before the records exist, send an alert for the peer or the handshake's output.
            _ => return Ok(self.output(into)),
        };
        sealed.or_else(|error| self.fail(error))
    }

    fn output_bytes(&self) -> usize {
        match &self.stage {
            Stage::Open { records, .. } => records.output_bytes(),
            Stage::Handshake(handle) => handle.output_bytes(),
        }
    }

    fn output(&mut self, into: &mut [u8]) -> usize {
        match &mut self.stage {
            Stage::Open { records, .. } => records.take_output(into),
            Stage::Handshake(handle) => {
                self.has_answered |= handle.output_bytes() > 0;
                handle.take_output(into)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_secure::TlsKey;

    const HOST: &str = "nqn.2026-11.h:one";
    const SUBSYSTEM: &str = "nqn.2026-11.s:one";

    /// Makes a client request a limit for the content of records (RFC 6066, section 4).
    fn ask_for_short_records(client: &Session, mode: u8) {
        let Stage::Handshake(handle) = &client.stage else { panic!("the handle was freed") };
        type Set = unsafe extern "C" fn(*mut Ssl, u8) -> c_int;
        // SAFETY: the library is loaded, the type matches its headers, and the `SSL` is valid.
        let is_set = unsafe {
            let libraries = files::load(files::VERSIONS[0]).expect("OpenSSL is loaded");
            let set = library::symbol::<Set>(&libraries, "SSL_set_tlsext_max_fragment_length");
            set.expect("the function exists")(handle.ssl.as_ptr(), mode)
        };
        assert_eq!(is_set, 1);
    }

    fn output(from: &mut Session) -> Vec<u8> {
        let mut bytes = vec![0; from.output_bytes()];
        from.output(&mut bytes);
        bytes
    }

    /// Small devices request short records. OpenSSL agrees to the requested limit.
    #[test]
    fn records_obey_the_length_that_the_client_requested() {
        for (mode, most_bytes) in [(0, limits::RECORD_BYTES), (1, 512), (2, 1024), (4, 4096)] {
            let fill = &mut |out: &mut [u8]| out.fill(1);
            let key = TlsKey::generate(Hash::Sha256, fill).expect("a suite");
            let mut known = ServerKeys::default();
            known.add(key.clone(), HOST);
            let psk = key.psks(HOST, SUBSYSTEM).swap_remove(0);
            let mut client = Session::new(Side::Client(psk)).expect("OpenSSL is installed");
            let side = Side::Server { keys: Arc::new(known), left: Vec::new() };
            let mut server = Session::new(side).expect("OpenSSL is installed");
            ask_for_short_records(&client, mode);
            while !(client.handshake().expect("the handshake continues")
                & server.handshake().expect("the handshake continues"))
            {
                server.feed(&output(&mut client));
                client.feed(&output(&mut server));
            }
            let data = vec![7; 50_000];
            let mut sealed = vec![0; server.sealed_bytes(data.len())];
            let length = server
                .seal(&mut std::iter::once(&data[..]), &mut sealed)
                .expect("room in the buffer");
            let mut left = &sealed[..length];
            while let [_, _, _, high, low, rest @ ..] = left {
                let body_bytes = usize::from(u16::from_be_bytes([*high, *low]));
                // The limit includes type and padding (RFC 8446, section 5.4).
                assert!(body_bytes - 16 <= most_bytes, "{body_bytes} bytes of {most_bytes}");
                left = &rest[body_bytes..];
            }
            let mut plain = vec![0; client.openable_bytes(length)];
            let (filled, ended) = client.open(&sealed[..length], &mut plain);
            assert!(plain[..filled] == data && ended.is_none(), "{ended:?}");
        }
    }
}
