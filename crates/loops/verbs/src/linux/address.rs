//! Converts socket addresses to and from the C interface's structures.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

pub(super) fn to_storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: zeroes are a valid storage.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let to = at.cast::<sockaddr_in>();
            // SAFETY: a storage has room and alignment for every family's address.
            unsafe {
                (*to).sin_family = AF_INET as libc::sa_family_t;
                (*to).sin_port = v4.port().to_be();
                (*to).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
        }
        SocketAddr::V6(v6) => {
            let to = at.cast::<sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*to).sin6_family = AF_INET6 as libc::sa_family_t;
                (*to).sin6_port = v6.port().to_be();
                (*to).sin6_flowinfo = v6.flowinfo();
                (*to).sin6_addr.s6_addr = v6.ip().octets();
                (*to).sin6_scope_id = v6.scope_id();
            }
        }
    }
    storage
}

/// Converts a storage to an address. `None` if it is not an IP address.
pub(super) fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let at = &raw const *storage;
    match i32::from(storage.ss_family) {
        AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`.
            let from = unsafe { *at.cast::<sockaddr_in>() };
            let ip = from.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the family says that this is a `sockaddr_in6`.
            let from = unsafe { *at.cast::<sockaddr_in6>() };
            let ip = from.sin6_addr.s6_addr.into();
            let port = u16::from_be(from.sin6_port);
            Some(SocketAddrV6::new(ip, port, from.sin6_flowinfo, from.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// True for an IPv6 address. By default, a listener there would also accept IPv4 connections.
pub(super) fn is_v6(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(_))
}

/// The pointer that the C interface takes.
pub(super) fn pointer_to(storage: &mut sockaddr_storage) -> *mut sockaddr {
    (&raw mut *storage).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_round_trip() {
        for text in ["192.0.2.7:4420", "[2001:db8::7]:4420", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_storage(&to_storage(address)), Some(address));
        }
        // SAFETY: zeroes are a valid storage.
        assert_eq!(from_storage(&unsafe { std::mem::zeroed() }), None);
    }
}
