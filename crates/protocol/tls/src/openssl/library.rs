//! The functions of OpenSSL that this crate uses. On the first use of TLS, this module loads them
//! from OpenSSL's libraries.

use super::files;
use std::ffi::{c_char, c_int, c_long, c_uchar, c_ulong, c_void};
use std::sync::OnceLock;

/// Skips the cleanup at the program's end, since other threads may still use OpenSSL then.
const INIT_NO_ATEXIT: u64 = 0x0008_0000;
/// Skips the configuration file, which may name libraries to load. On Windows, the builder of
/// OpenSSL chose the path of the file: often a missing folder that any user can create. An
/// environment variable can also set the path. On other systems, both the file and OpenSSL belong
/// to the system.
const INIT_NO_LOAD_CONFIG: u64 = 0x80;
const CTRL_SET_MODE: c_int = 33;
const CTRL_SET_SESSION_CACHE: c_int = 44;
const CTRL_SET_GROUPS: c_int = 92;
const CTRL_SET_MIN_VERSION: c_int = 123;
const CTRL_SET_MAX_VERSION: c_int = 124;
/// Makes OpenSSL free its record buffers when they are empty.
const MODE_RELEASE_BUFFERS: c_long = 0x10;
const VERIFY_PEER: c_int = 1;
/// Lists of key exchange groups. If OpenSSL rejects the first list, this crate uses the second. The
/// second omits a group that FIPS modules lack.
const GROUPS: [&[u8]; 2] = [b"X25519:P-256:P-384\0", b"P-256:P-384\0"];
/// The version number of TLS 1.3 on the wire.
pub(super) const VERSION: c_int = 0x0304;

macro_rules! opaque {
    ($($name:ident: $what:literal;)*) => {
        $(#[doc = $what]
        #[repr(C)]
        pub(super) struct $name([u8; 0]);)*
    };
}

opaque! {
    Ssl: "`SSL`";
    SslContext: "`SSL_CTX`";
    SslMethod: "`SSL_METHOD`";
    SslSession: "`SSL_SESSION`";
    SslCipher: "`SSL_CIPHER`";
    Digest: "`EVP_MD`";
    Bio: "`BIO`";
    BioMethod: "`BIO_METHOD`";
}

/// The type `SSL_psk_find_session_cb_func`.
pub(super) type FindSession =
    unsafe extern "C" fn(*mut Ssl, *const c_uchar, usize, *mut *mut SslSession) -> c_int;
/// The type `SSL_psk_use_session_cb_func`.
pub(super) type UseSession = unsafe extern "C" fn(
    *mut Ssl,
    *const Digest,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut SslSession,
) -> c_int;
/// The type `SSL_client_hello_cb_fn`.
pub(super) type HelloCame = unsafe extern "C" fn(*mut Ssl, *mut c_int, *mut c_void) -> c_int;

/// The type `SSL_CTX_keylog_cb_func`.
pub(super) type SecretMade = unsafe extern "C" fn(*const Ssl, *const c_char);

macro_rules! functions {
    ($($name:ident($($kind:ty),*) $(-> $given:ty)?;)*) => {
        /// The functions, by their names.
        #[expect(non_snake_case, reason = "OpenSSL's names")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($kind),*) $(-> $given)?,)*
        }

        impl Functions {
            fn find(libraries: &[libloading::Library]) -> Result<Self, String> {
                $(
                    // SAFETY: the types match OpenSSL 3's headers, where they are stable.
                    #[expect(non_snake_case, reason = "OpenSSL's names")]
                    let $name = unsafe { symbol(libraries, stringify!($name))? };
                )*
                Ok(Self { $($name),* })
            }
        }
    };
}

functions! {
    OPENSSL_init_crypto(u64, *const c_void) -> c_int;
    ERR_clear_error();
    ERR_get_error() -> c_ulong;
    ERR_reason_error_string(c_ulong) -> *const c_char;
    BIO_s_mem() -> *const BioMethod;
    BIO_new(*const BioMethod) -> *mut Bio;
    BIO_free(*mut Bio) -> c_int;
    BIO_read(*mut Bio, *mut c_void, c_int) -> c_int;
    BIO_write(*mut Bio, *const c_void, c_int) -> c_int;
    BIO_ctrl_pending(*mut Bio) -> usize;
    TLS_method() -> *const SslMethod;
    SSL_CTX_new(*const SslMethod) -> *mut SslContext;
    SSL_CTX_free(*mut SslContext);
    SSL_CTX_ctrl(*mut SslContext, c_int, c_long, *mut c_void) -> c_long;
    SSL_CTX_set_verify(*mut SslContext, c_int, *const c_void);
    SSL_CTX_set_num_tickets(*mut SslContext, usize) -> c_int;
    SSL_CTX_set_keylog_callback(*mut SslContext, SecretMade);
    SSL_CTX_set_client_hello_cb(*mut SslContext, HelloCame, *mut c_void);
    SSL_CTX_set_psk_find_session_callback(*mut SslContext, FindSession);
    SSL_CTX_set_psk_use_session_callback(*mut SslContext, UseSession);
    SSL_new(*mut SslContext) -> *mut Ssl;
    SSL_free(*mut Ssl);
    SSL_set_bio(*mut Ssl, *mut Bio, *mut Bio);
    SSL_set_ex_data(*mut Ssl, c_int, *mut c_void) -> c_int;
    SSL_get_ex_data(*const Ssl, c_int) -> *mut c_void;
    SSL_set_ciphersuites(*mut Ssl, *const c_char) -> c_int;
    SSL_set_accept_state(*mut Ssl);
    SSL_set_connect_state(*mut Ssl);
    SSL_do_handshake(*mut Ssl) -> c_int;
    SSL_session_reused(*const Ssl) -> c_int;
    SSL_get_session(*const Ssl) -> *mut SslSession;
    SSL_get_error(*const Ssl, c_int) -> c_int;
    SSL_client_hello_get0_ext(*mut Ssl, u32, *mut *const c_uchar, *mut usize) -> c_int;
    SSL_CIPHER_find(*mut Ssl, *const c_uchar) -> *const SslCipher;
    SSL_CIPHER_get_handshake_digest(*const SslCipher) -> *const Digest;
    SSL_SESSION_new() -> *mut SslSession;
    SSL_SESSION_free(*mut SslSession);
    SSL_SESSION_get_max_fragment_length(*const SslSession) -> c_uchar;
    SSL_SESSION_set1_master_key(*mut SslSession, *const c_uchar, usize) -> c_int;
    SSL_SESSION_set_cipher(*mut SslSession, *const SslCipher) -> c_int;
    SSL_SESSION_set_protocol_version(*mut SslSession, c_int) -> c_int;
}

/// The functions of this crate that OpenSSL calls.
pub(super) struct Callbacks {
    pub(super) hello_came: HelloCame,
    pub(super) find_session: FindSession,
    pub(super) use_session: UseSession,
    pub(super) secret_made: SecretMade,
}

/// The library and its two contexts. Every connection of the process shares them.
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) server: *mut SslContext,
    pub(super) client: *mut SslContext,
}

// SAFETY: several threads may use OpenSSL's contexts once they are set up, which happens before
// they are shared. The contexts live as long as the process.
unsafe impl Send for Library {}
// SAFETY: as for `Send`, several threads may use the contexts at the same time.
unsafe impl Sync for Library {}

impl Library {
    /// Returns the library. Loads it at the first call.
    pub(super) fn load(callbacks: &Callbacks) -> Result<&'static Self, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| open().and_then(|f| Self::set_up(f, callbacks)));
        library.as_ref().map_err(String::as_str)
    }

    fn set_up(functions: Functions, callbacks: &Callbacks) -> Result<Self, String> {
        let options = match cfg!(windows) {
            true => INIT_NO_ATEXIT | INIT_NO_LOAD_CONFIG,
            false => INIT_NO_ATEXIT,
        };
        // SAFETY: any thread may call this function at any time.
        unsafe { (functions.OPENSSL_init_crypto)(options, std::ptr::null()) };
        let (server, client) = (functions.context()?, functions.context()?);
        let f = &functions;
        // SAFETY: the contexts are valid and not shared yet. The callbacks are functions of this
        // program with the types that OpenSSL expects.
        unsafe {
            (f.SSL_CTX_set_num_tickets)(server, 0);
            (f.SSL_CTX_set_client_hello_cb)(server, callbacks.hello_came, std::ptr::null_mut());
            (f.SSL_CTX_set_psk_find_session_callback)(server, callbacks.find_session);
            (f.SSL_CTX_set_psk_use_session_callback)(client, callbacks.use_session);
            (f.SSL_CTX_set_keylog_callback)(server, callbacks.secret_made);
            (f.SSL_CTX_set_keylog_callback)(client, callbacks.secret_made);
            // The context trusts no certificate authority. With this setting, it refuses a server
            // that offers a certificate instead of a key.
            (f.SSL_CTX_set_verify)(client, VERIFY_PEER, std::ptr::null());
        }
        Ok(Self { functions, server, client })
    }
}

impl Functions {
    /// Returns a context for TLS 1.3 only, without state that outlives a connection.
    fn context(&self) -> Result<*mut SslContext, String> {
        // SAFETY: the method is static.
        let context = unsafe { (self.SSL_CTX_new)((self.TLS_method)()) };
        if context.is_null() {
            return Err("OpenSSL cannot create a context".to_owned());
        }
        let set = |what, value: c_long, pointer: *const u8| {
            // SAFETY: the context is valid, and each setting gets a value of the type that OpenSSL
            // expects.
            unsafe { (self.SSL_CTX_ctrl)(context, what, value, pointer.cast_mut().cast()) }
        };
        let none = std::ptr::null();
        set(CTRL_SET_SESSION_CACHE, 0, none);
        set(CTRL_SET_MODE, MODE_RELEASE_BUFFERS, none);
        let is_set = set(CTRL_SET_MIN_VERSION, c_long::from(VERSION), none) == 1
            && set(CTRL_SET_MAX_VERSION, c_long::from(VERSION), none) == 1
            && GROUPS.iter().any(|list| set(CTRL_SET_GROUPS, 0, list.as_ptr()) == 1);
        if is_set {
            return Ok(context);
        }
        // SAFETY: nothing else uses the context.
        unsafe { (self.SSL_CTX_free)(context) };
        Err("OpenSSL cannot be set up for TLS 1.3".to_owned())
    }
}

/// Loads the first installed version.
fn open() -> Result<Functions, String> {
    let mut problem = String::new();
    for version in files::VERSIONS {
        let found = files::load(version).and_then(|libraries| {
            let functions = Functions::find(&libraries)?;
            #[cfg(all(feature = "sim", unix))]
            super::seeded::install(&libraries)?;
            // The libraries stay loaded, since their functions are used until the program ends.
            std::mem::forget(libraries);
            Ok(functions)
        });
        match found {
            Ok(functions) => return Ok(functions),
            Err(error) if problem.is_empty() => problem = error,
            Err(_) => {}
        }
    }
    Err(format!("TLS needs OpenSSL 3: {} ({problem})", files::advice()))
}

/// Returns a function from the first library that has it.
///
/// # Safety
/// `T` must be the type of the function.
pub(super) unsafe fn symbol<T: Copy>(
    libraries: &[libloading::Library],
    name: &str,
) -> Result<T, String> {
    // SAFETY: by this function's contract.
    let found = libraries.iter().find_map(|library| unsafe { library.get::<T>(name).ok() });
    found.map(|symbol| *symbol).ok_or_else(|| format!("this OpenSSL lacks {name}"))
}
