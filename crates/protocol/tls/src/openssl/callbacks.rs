//! The callbacks with which OpenSSL requests a key during a handshake.

use super::library::{Callbacks, Digest, Functions, Ssl, SslSession, VERSION};
use crate::hello;
use crate::keys::ServerKeys;
use crate::limits;
use crate::named::Named;
use crate::secrets::Secrets;
use farblock_secure::{Hash, TlsPsk};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The index of the [`State`] in the extra data of an `SSL`.
pub(super) const STATE_INDEX: c_int = 0;

pub(super) const CALLBACKS: Callbacks =
    Callbacks { hello_came, find_session, use_session, secret_made };

const EXTENSION_PRE_SHARED_KEY: u32 = 41;
const HELLO_SUCCESS: c_int = 1;
const HELLO_ERROR: c_int = 0;
const ALERT_UNKNOWN_PSK_IDENTITY: c_int = 115;

/// The role of this process in the connection, and its keys.
pub(super) enum Side {
    Client(TlsPsk),
    /// `keys`: every key that the server accepts. `left`: the keys that the offered identity may
    /// stand for and that the server has not tried yet, in reverse order.
    Server {
        keys: Arc<ServerKeys>,
        left: Vec<Arc<Named>>,
    },
}

/// The data that the callbacks of one connection use, and the results that they have found.
pub(super) struct State {
    functions: &'static Functions,
    side: Side,
    /// The key that the connection uses.
    pub(super) chosen: Option<Arc<Named>>,
    /// The identities that a refused peer offered, and the identity forms that the server knows for
    /// the peer's host and subsystem.
    pub(super) refused: Option<(Vec<String>, Vec<String>)>,
    /// The secrets of the handshake.
    pub(super) secrets: Secrets,
}

impl State {
    pub(super) fn new(functions: &'static Functions, side: Side) -> Self {
        Self { functions, side, chosen: None, refused: None, secrets: Secrets::default() }
    }

    /// Returns the hash of the cipher suite that a client offers or that the chosen key requires.
    pub(super) fn suite(&self) -> Hash {
        match &self.side {
            Side::Client(psk) => psk.hash,
            Side::Server { .. } => {
                self.chosen.as_ref().map_or(Hash::Sha256, |chosen| chosen.psk.hash)
            }
        }
    }

    /// Returns the number of keys for the chosen identity. `None` if the server tries all of them
    /// at once.
    pub(super) fn too_many(&self) -> Option<usize> {
        let Side::Server { keys, .. } = &self.side else { return None };
        keys.too_many(self.chosen.as_ref()?)
    }

    /// Returns the side for another handshake, which tries the next key for the chosen identity.
    /// `None` if no key is left.
    pub(super) fn next_turn(&mut self) -> Option<Side> {
        let Side::Server { keys, left } = &mut self.side else { return None };
        let (keys, left) = (Arc::clone(keys), std::mem::take(left));
        (!left.is_empty()).then_some(Side::Server { keys, left })
    }

    /// Chooses a key for one of the identities that a client offers. If the client must offer the
    /// identities again (HelloRetryRequest), chooses the same key.
    fn choose(&mut self, extension: &[u8]) -> bool {
        let Side::Server { keys, left } = &mut self.side else { return false };
        if self.chosen.is_some() {
            return true;
        }
        if left.is_empty() {
            let offered = hello::identities(extension).take(limits::IDENTITIES);
            let known = offered.map(|identity| keys.find(identity)).find(|it| !it.is_empty());
            *left = known.unwrap_or_default();
            left.reverse();
        }
        self.chosen = left.pop();
        if self.chosen.is_none() {
            let offered = || hello::identities(extension).take(limits::NAMED_IDENTITIES);
            let known = offered().map(|identity| keys.forms_beside(identity));
            let known = known.into_iter().find(|forms| !forms.is_empty()).unwrap_or_default();
            self.refused = Some((offered().map(hello::shown).collect(), known));
        }
        self.chosen.is_some()
    }
}

/// Limits a connection to the cipher suite of a key.
///
/// # Safety
/// The `SSL` is valid.
pub(super) unsafe fn choose_suite(functions: &Functions, ssl: *mut Ssl, hash: Hash) -> bool {
    let name: &CStr = match hash {
        Hash::Sha256 => c"TLS_AES_128_GCM_SHA256",
        _ => c"TLS_AES_256_GCM_SHA384",
    };
    // SAFETY: by this function's contract.
    unsafe { (functions.SSL_set_ciphersuites)(ssl, name.as_ptr()) == 1 }
}

/// Returns the state of the `SSL` for which OpenSSL runs a callback.
///
/// # Safety
/// This crate created the `SSL`, which is in a callback, so nothing else accesses its state.
unsafe fn state<'a>(ssl: *mut Ssl) -> Option<&'a mut State> {
    let library = super::Library::load(&CALLBACKS).ok()?;
    // SAFETY: each `SSL` has its state before OpenSSL can run a callback for it.
    unsafe {
        let state = (library.functions.SSL_get_ex_data)(ssl, STATE_INDEX);
        state.cast::<State>().as_mut()
    }
}

/// Handles a client's first message: chooses the key, which determines the cipher suite.
unsafe extern "C" fn hello_came(ssl: *mut Ssl, alert: *mut c_int, _: *mut c_void) -> c_int {
    // SAFETY: OpenSSL calls this with an `SSL` of this crate and a valid pointer for the alert.
    unsafe {
        let Some(state) = state(ssl) else { return HELLO_ERROR };
        let f = state.functions;
        let (mut start, mut length) = (std::ptr::null(), 0);
        let found = (f.SSL_client_hello_get0_ext)(
            ssl,
            EXTENSION_PRE_SHARED_KEY,
            &raw mut start,
            &raw mut length,
        );
        let extension = match found {
            1 if !start.is_null() => std::slice::from_raw_parts(start, length),
            _ => &[],
        };
        *alert = ALERT_UNKNOWN_PSK_IDENTITY;
        if state.choose(extension)
            && let Some(chosen) = &state.chosen
            && choose_suite(f, ssl, chosen.psk.hash)
        {
            return HELLO_SUCCESS;
        }
        HELLO_ERROR
    }
}

/// Passes the server's chosen key to OpenSSL if `identity` is the identity of this key.
unsafe extern "C" fn find_session(
    ssl: *mut Ssl,
    identity: *const c_uchar,
    length: usize,
    session: *mut *mut SslSession,
) -> c_int {
    // SAFETY: OpenSSL calls this with an `SSL` of this crate, an identity of that length and a
    // valid pointer for the session.
    unsafe {
        *session = std::ptr::null_mut();
        let Some(state) = state(ssl) else { return 0 };
        let offered = std::slice::from_raw_parts(identity, length);
        if let Some(chosen) = &state.chosen
            && chosen.psk.identity.as_bytes() == offered
        {
            *session = make_session(state.functions, ssl, &chosen.psk);
            return c_int::from(!(*session).is_null());
        }
        1
    }
}

/// Passes the client's key to OpenSSL if the key fits the requested hash.
unsafe extern "C" fn use_session(
    ssl: *mut Ssl,
    digest: *const Digest,
    identity: *mut *const c_uchar,
    length: *mut usize,
    session: *mut *mut SslSession,
) -> c_int {
    // SAFETY: OpenSSL calls this with an `SSL` of this crate and valid pointers for the results.
    // The identity stays in place for as long as the `SSL` lives.
    unsafe {
        *session = std::ptr::null_mut();
        let Some(state) = state(ssl) else { return 0 };
        let Side::Client(psk) = &state.side else { return 0 };
        let f = state.functions;
        let cipher = (f.SSL_CIPHER_find)(ssl, suite(psk.hash).as_ptr());
        let is_wanted = digest.is_null()
            || (!cipher.is_null() && (f.SSL_CIPHER_get_handshake_digest)(cipher) == digest);
        if !is_wanted {
            return 1;
        }
        *session = make_session(f, ssl, psk);
        *identity = psk.identity.as_ptr();
        *length = psk.identity.len();
        c_int::from(!(*session).is_null())
    }
}

/// Stores the secrets for application data in the state. OpenSSL reports every secret as a line
/// with its label, a number that identifies the connection, and the secret itself.
unsafe extern "C" fn secret_made(ssl: *const Ssl, line: *const c_char) {
    // SAFETY: OpenSSL calls this with an `SSL` of this crate and a text that it owns.
    unsafe {
        let Some(state) = state(ssl.cast_mut()) else { return };
        let mut words = CStr::from_ptr(line).to_bytes().split(|&byte| byte == b' ');
        let kept = match words.next() {
            Some(b"CLIENT_TRAFFIC_SECRET_0") => &mut state.secrets.client,
            Some(b"SERVER_TRAFFIC_SECRET_0") => &mut state.secrets.server,
            _ => return,
        };
        *kept = words.nth(1).and_then(from_hex);
    }
}

fn from_hex(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.chunks(2) {
        let &[high, low] = pair else { return None };
        bytes.push(digit(high)? << 4 | digit(low)?);
    }
    Some(bytes)
}

/// Returns a session with the pre-shared key, in the form that OpenSSL expects; null on failure.
///
/// # Safety
/// The `SSL` is valid.
unsafe fn make_session(f: &Functions, ssl: *mut Ssl, psk: &TlsPsk) -> *mut SslSession {
    // SAFETY: by this function's contract; nothing else uses the session until it is returned.
    unsafe {
        let cipher = (f.SSL_CIPHER_find)(ssl, suite(psk.hash).as_ptr());
        let session = (f.SSL_SESSION_new)();
        if session.is_null() {
            return session;
        }
        let is_whole = !cipher.is_null()
            && (f.SSL_SESSION_set1_master_key)(session, psk.key.as_ptr(), psk.key.len()) == 1
            && (f.SSL_SESSION_set_cipher)(session, cipher) == 1
            && (f.SSL_SESSION_set_protocol_version)(session, VERSION) == 1;
        if is_whole {
            return session;
        }
        (f.SSL_SESSION_free)(session);
        std::ptr::null_mut()
    }
}

/// Returns the identifier of a cipher suite on the wire (RFC 8446, appendix B.4).
fn suite(hash: Hash) -> [u8; 2] {
    match hash {
        Hash::Sha256 => [0x13, 0x01],
        _ => [0x13, 0x02],
    }
}
