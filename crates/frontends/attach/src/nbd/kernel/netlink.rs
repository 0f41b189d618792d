//! The part of generic netlink that one family of messages needs: two kinds of headers and one kind
//! of attribute. It is so small that this module uses no library.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::os::fd::OwnedFd;

/// The kernel's control family, which returns the numbers of other families.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const MESSAGE_ERROR: u16 = 2;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;
/// The length of a message header, in bytes: length, type, flags, sequence number, sender.
const HEADER_BYTES: usize = 16;
/// The length of a family header, in bytes: command, version, and two reserved bytes.
const FAMILY_HEADER_BYTES: usize = 4;
const ATTRIBUTE_NESTED: u16 = 1 << 15;
/// The mask of the two flags in an attribute's type.
const ATTRIBUTE_FLAGS: u16 = 3 << 14;
/// The size of the receive buffer in bytes, larger than any answer.
const ANSWER_BYTES: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Attributes {
        // The attribute's length does not include the padding that aligns the next attribute.
        let length = u16::try_from(4 + value.len()).expect("attributes are short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn u32(self, kind: u16, value: u32) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, kind: u16, value: u64) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Attributes {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(super) fn nested(self, kind: u16, value: &Attributes) -> Attributes {
        self.bytes(kind | ATTRIBUTE_NESTED, &value.0)
    }

    /// The value of the first attribute of this kind.
    pub(super) fn find(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = &self.0[..];
        loop {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let found = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
            let value = rest.get(4..length)?;
            if found & !ATTRIBUTE_FLAGS == kind {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }

    pub(super) fn find_u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.find(kind)?.try_into().ok()?))
    }
}

/// A family of messages, and a socket to send them.
pub(super) struct Family {
    socket: OwnedFd,
    id: u16,
    version: u8,
    sequence: u32,
}

impl Family {
    /// Looks up a family by its name.
    ///
    /// # Errors
    /// Returns `NotFound` if the kernel has no such family, for example because its module is not
    /// loaded.
    pub(super) fn find(name: &str, version: u8) -> io::Result<Family> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        // From now on, this socket receives messages only from the kernel.
        rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        let mut family = Family { socket, id: CONTROL_FAMILY, version: 1, sequence: 0 };
        let wanted = Attributes::default().text(CONTROL_FAMILY_NAME, name);
        let answer = family.call(CONTROL_GET_FAMILY, &wanted)?;
        let id = answer.find(CONTROL_FAMILY_ID).and_then(|id| id.try_into().ok());
        family.id = u16::from_ne_bytes(id.ok_or(io::ErrorKind::InvalidData)?);
        family.version = version;
        Ok(family)
    }

    /// Sends a message and waits until the kernel has executed it. Returns the attributes of the
    /// answer.
    pub(super) fn call(&mut self, command: u8, attributes: &Attributes) -> io::Result<Attributes> {
        self.sequence += 1;
        let length = HEADER_BYTES + FAMILY_HEADER_BYTES + attributes.0.len();
        let mut message = (length as u32).to_ne_bytes().to_vec();
        message.extend(self.id.to_ne_bytes());
        message.extend((FLAG_REQUEST | FLAG_ACK).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend([command, self.version, 0, 0]);
        message.extend(&attributes.0);
        rustix::io::retry_on_intr(|| {
            rustix::net::send(&self.socket, &message, SendFlags::empty())
        })?;
        let mut answer = Attributes::default();
        let mut room = vec![0; ANSWER_BYTES];
        loop {
            let (count, _) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty())
            })?;
            if self.read(&room[..count], &mut answer)? {
                return Ok(answer);
            }
        }
    }

    /// Reads received messages, and appends their attributes to `answer`. Returns true if the
    /// kernel has executed the request.
    fn read(&self, mut bytes: &[u8], answer: &mut Attributes) -> io::Result<bool> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        while !bytes.is_empty() {
            let header = bytes.get(..HEADER_BYTES).ok_or_else(invalid)?;
            let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4"));
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let length = field(0) as usize;
            let body = bytes.get(HEADER_BYTES..length).ok_or_else(invalid)?;
            if field(8) == self.sequence {
                if kind == MESSAGE_ERROR {
                    let code = body.get(..4).ok_or_else(invalid)?;
                    let code = i32::from_ne_bytes(code.try_into().expect("4"));
                    return match code.checked_neg() {
                        Some(0) => Ok(true),
                        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                        None => Err(invalid()),
                    };
                }
                answer.0 = body.get(FAMILY_HEADER_BYTES..).ok_or_else(invalid)?.to_vec();
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_netlink_attributes_are_found() {
        let inner = Attributes::default().u32(1, 7);
        let all = Attributes::default().text(1, "disk").u64(2, 1 << 40).nested(3, &inner).u32(4, 9);
        assert_eq!(all.0.len() % 4, 0);
        assert_eq!(all.find(1), Some(&b"disk\0"[..]));
        assert_eq!(all.find(2), Some(&(1_u64 << 40).to_ne_bytes()[..]));
        assert_eq!(all.find(3), Some(&inner.0[..]));
        assert_eq!((all.find_u32(4), all.find_u32(1), all.find(5)), (Some(9), None, None));
    }

    #[test]
    fn truncated_netlink_attributes_are_ignored() {
        let whole = Attributes::default().u32(1, 7).u32(2, 8);
        for length in 0..16 {
            assert_eq!(
                Attributes(whole.0[..length].to_vec()).find(2),
                None,
                "attributes cut to {length} bytes"
            );
        }
        assert_eq!(Attributes(vec![0; 64]).find(2), None, "an attribute of length 0 is ignored");
    }

    /// Every kernel has the control family.
    #[test]
    fn the_kernel_answers_netlink_requests() {
        let mut family = Family::find("nlctrl", 1).expect("netlink works");
        assert_eq!(family.id, CONTROL_FAMILY);
        let wanted = Attributes::default().text(CONTROL_FAMILY_NAME, "no such family");
        let error = family.call(CONTROL_GET_FAMILY, &wanted).expect_err("no such family");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
