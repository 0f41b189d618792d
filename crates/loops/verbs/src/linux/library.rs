//! The functions of libibverbs and librdmacm, which are looked up when a program first uses RDMA.

use std::io;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void, size_t, sockaddr};

use super::sys::*;
use crate::error::VerbsError;

const VERBS: &str = "libibverbs.so.1";
const MANAGER: &str = "librdmacm.so.1";

macro_rules! functions {
    ($($name:ident($($kind:ty),*) $(-> $given:ty)?;)*) => {
        /// The functions, by their names.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($kind),*) $(-> $given)?,)*
        }

        impl Functions {
            fn find(libraries: &[libloading::Library; 2]) -> Result<Self, libloading::Error> {
                let [verbs, manager] = libraries;
                $(
                    let name = stringify!($name);
                    let library = if name.starts_with("ibv_") { verbs } else { manager };
                    // SAFETY: the types match rdma-core's headers, whose interface is stable; `sys`
                    // has the structures.
                    let $name = unsafe { *library.get(name)? };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut c_void;
    ibv_free_device_list(*mut *mut c_void);
    ibv_get_device_name(*mut c_void) -> *const c_char;
    ibv_open_device(*mut c_void) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
        -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, u32);
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    rdma_create_event_channel() -> *mut rdma_event_channel;
    rdma_destroy_event_channel(*mut rdma_event_channel);
    rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
    rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, size_t) -> c_int;
    rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    rdma_destroy_qp(*mut rdma_cm_id);
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut rdma_cm_id) -> c_int;
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
}

/// Loads the libraries at the first call. They stay loaded until the process exits.
pub(super) fn load() -> Result<&'static Functions, VerbsError> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| find_in(VERBS, MANAGER)).as_ref();
    found.map_err(|sentence| VerbsError::NoLibrary(sentence.clone()))
}

fn find_in(verbs: &str, manager: &str) -> Result<Functions, String> {
    let open = |name: &str| {
        // SAFETY: the initialisers of both libraries are safe in any process.
        unsafe { libloading::Library::new(name) }.map_err(|error| {
            format!(
                "RDMA needs libibverbs and librdmacm, which are not on this machine ({error}): \
                 install them, for example with `apt-get install librdmacm1 ibverbs-providers` or \
                 `dnf install librdmacm libibverbs`"
            )
        })
    };
    let libraries = [open(verbs)?, open(manager)?];
    let functions = Functions::find(&libraries).map_err(|error| {
        format!("{verbs} or {manager} of this machine is too old ({error}): install a newer one")
    })?;
    // Never unload the libraries, because other threads may call their functions until the process
    // exits.
    std::mem::forget(libraries);
    Ok(functions)
}

/// Converts the result of a verb that returns 0, or -1 with an error in `errno`.
pub(super) fn by_errno(verb: &'static str, result: c_int) -> Result<(), VerbsError> {
    if result == 0 { Ok(()) } else { Err(last_error(verb)) }
}

/// Converts the result of a verb that returns 0 or an error number. Some providers (device drivers)
/// return -1 instead, with an error in `errno`.
pub(super) fn by_number(verb: &'static str, result: c_int) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error(verb)),
        number => {
            let error = io::Error::from_raw_os_error(number.wrapping_abs());
            Err(VerbsError::Refused { verb, error })
        }
    }
}

/// Converts the result of a verb that returns a pointer, or null with an error in `errno`.
pub(super) fn pointer<T>(verb: &'static str, result: *mut T) -> Result<*mut T, VerbsError> {
    if result.is_null() { Err(last_error(verb)) } else { Ok(result) }
}

pub(super) fn last_error(verb: &'static str) -> VerbsError {
    VerbsError::Refused { verb, error: io::Error::last_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_without_rdma_libraries_names_the_packages() {
        let sentence = find_in("libibverbs-that-nobody-has.so.1", MANAGER)
            .err()
            .expect("the library is absent");
        assert!(sentence.contains("apt-get install librdmacm1 ibverbs-providers"), "{sentence}");
        let sentence = find_in("libc.so.6", "libc.so.6").err().expect("no libibverbs");
        assert!(sentence.contains("too old"), "{sentence}");
    }
}
