//! The functions of librbd and librados that this crate uses. The process finds them in the
//! system's libraries when it first opens an image.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::OpenError;

/// The name of librbd. It depends on librados, so the loader finds the functions of both libraries
/// through it.
#[cfg(unix)]
const NAME: &str = "librbd.so.1";

pub(crate) type Cluster = *mut c_void;
pub(crate) type IoContext = *mut c_void;
pub(crate) type ImageHandle = *mut c_void;
pub(crate) type Completion = *mut c_void;
/// A setting of an image and where it was set: `rbd_config_option_t` in librbd's header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *const c_char,
    pub(crate) value: *const c_char,
    /// Where the setting was set: `rbd_config_source_t` in librbd's header.
    pub(crate) source: c_int,
}

/// The function that librbd calls when an operation completes: `rbd_callback_t` in its header.
pub(crate) type Completed = unsafe extern "C" fn(Completion, *mut c_void);
/// The function that librbd calls when an image changes: `rbd_update_callback_t` in its header.
pub(crate) type Updated = unsafe extern "C" fn(*mut c_void);

/// The flag with which zeroed space stays allocated: `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const THICK: c_int = 1;

macro_rules! functions {
    ({ $($name:ident($($kind:ty),*) $(-> $given:ty)?;)* }
     newer { $($new:ident($($new_kind:ty),*) $(-> $new_given:ty)?;)* }) => {
        /// The functions by name. A newer function is `None` if the library does not have it.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($kind),*) $(-> $given)?,)*
            $(pub(crate) $new: Option<unsafe extern "C" fn($($new_kind),*) $(-> $new_given)?>,)*
        }

        impl Functions {
            #[cfg(unix)]
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the types match Ceph's headers, and these functions are stable.
                    let $name = unsafe { *library.get(stringify!($name))? };
                )*
                $(
                    // SAFETY: the types match Ceph's headers, and these functions are stable.
                    let found = unsafe { library.get(stringify!($new)) };
                    let $new = found.ok().map(|found| *found).filter(|_| !IS_OLD.load(Relaxed));
                )*
                Ok(Self { $($name,)* $($new,)* })
            }
        }
    };
}

functions! {
    {
        rados_create(*mut Cluster, *const c_char) -> c_int;
        rados_conf_read_file(Cluster, *const c_char) -> c_int;
        rados_conf_parse_env(Cluster, *const c_char) -> c_int;
        rados_conf_set(Cluster, *const c_char, *const c_char) -> c_int;
        rados_connect(Cluster) -> c_int;
        rados_shutdown(Cluster);
        rados_cluster_fsid(Cluster, *mut c_char, usize) -> c_int;
        rados_ioctx_create(Cluster, *const c_char, *mut IoContext) -> c_int;
        rados_ioctx_destroy(IoContext);
        rados_ioctx_set_namespace(IoContext, *const c_char);
        rados_ioctx_get_id(IoContext) -> i64;
        rbd_open(IoContext, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_open_read_only(IoContext, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_close(ImageHandle) -> c_int;
        rbd_get_size(ImageHandle, *mut u64) -> c_int;
        rbd_get_features(ImageHandle, *mut u64) -> c_int;
        rbd_get_stripe_unit(ImageHandle, *mut u64) -> c_int;
        rbd_get_id(ImageHandle, *mut c_char, usize) -> c_int;
        rbd_config_image_list(ImageHandle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        rbd_update_watch(ImageHandle, *mut u64, Updated, *mut c_void) -> c_int;
        rbd_update_unwatch(ImageHandle, u64) -> c_int;
        rbd_aio_create_completion(*mut c_void, Completed, *mut Completion) -> c_int;
        rbd_aio_get_return_value(Completion) -> isize;
        rbd_aio_release(Completion);
        rbd_aio_read(ImageHandle, u64, usize, *mut c_char, Completion) -> c_int;
        rbd_aio_write(ImageHandle, u64, usize, *const c_char, Completion) -> c_int;
        rbd_aio_discard(ImageHandle, u64, u64, Completion) -> c_int;
        rbd_aio_writesame(
            ImageHandle, u64, usize, *const c_char, usize, Completion, c_int) -> c_int;
        rbd_aio_flush(ImageHandle, Completion) -> c_int;
    }
    newer {
        rbd_aio_write_zeroes(ImageHandle, u64, usize, Completion, c_int, c_int) -> c_int;
    }
}

/// Whether to ignore newer functions.
static IS_OLD: AtomicBool = AtomicBool::new(false);

/// For tests: treats the library as the library of Ceph 14, without newer functions. Call this
/// function before the process loads the library.
#[doc(hidden)]
pub fn use_as_of_ceph_14() {
    IS_OLD.store(true, Relaxed);
}

/// Loads the library at the first call. The library stays loaded until the process ends.
pub(crate) fn load() -> Result<&'static Functions, OpenError> {
    static LIBRARY: OnceLock<Result<Functions, OpenError>> = OnceLock::new();
    LIBRARY.get_or_init(find).as_ref().map_err(OpenError::clone)
}

#[cfg(unix)]
fn find() -> Result<Functions, OpenError> {
    find_in(NAME)
}

#[cfg(not(unix))]
fn find() -> Result<Functions, OpenError> {
    Err(OpenError::NoLibrary("farblock supports Ceph images on Linux only".to_owned()))
}

#[cfg(unix)]
fn find_in(name: &str) -> Result<Functions, OpenError> {
    // SAFETY: librbd's initialisers are safe in any process.
    let library = unsafe { libloading::Library::new(name) }.map_err(|error| {
        OpenError::NoLibrary(format!(
            "Ceph images need librbd, which is not installed ({error}): install it, for example \
             with `apt-get install librbd1` or `dnf install librbd1`"
        ))
    })?;
    let functions = Functions::find(&library).map_err(|error| {
        OpenError::NoLibrary(format!(
            "{name} of this machine is too old ({error}): install the version of Ceph 14 or newer"
        ))
    })?;
    // Never unload the library, because the process uses its functions until it ends.
    std::mem::forget(library);
    crate::closing::before_the_end();
    Ok(functions)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_error_without_librbd_names_the_package() {
        let error = find_in("librbd-that-nobody-has.so.1").err().expect("no such library");
        assert!(error.to_string().contains("apt-get install librbd1"), "{error}");
    }
}
