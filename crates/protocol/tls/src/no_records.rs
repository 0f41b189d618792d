//! Where there is no library for a handshake, there are no records.

use crate::TlsError;
use crate::secrets::Secrets;
use farblock_secure::Hash;

/// Never there.
pub(crate) enum Records {}

impl Records {
    pub(crate) fn new(_: Hash, _: Secrets, _: Option<u64>, _: bool) -> Option<Self> {
        None
    }

    pub(crate) fn shorten(&mut self, _: usize) {
        match *self {}
    }

    pub(crate) fn feed(&mut self, _: &[u8]) {
        match *self {}
    }

    pub(crate) fn openable_bytes(&self, _: usize) -> usize {
        match *self {}
    }

    pub(crate) fn open(&mut self, _: &[u8], _: &mut [u8]) -> (usize, Option<TlsError>) {
        match *self {}
    }

    pub(crate) fn sealed_bytes(&self, _: usize) -> usize {
        match *self {}
    }

    pub(crate) fn seal(
        &mut self,
        _: &mut dyn Iterator<Item = &[u8]>,
        _: &mut [u8],
    ) -> Result<usize, TlsError> {
        match *self {}
    }

    pub(crate) fn has_asked(&self) -> bool {
        match *self {}
    }

    pub(crate) fn output_bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn take_output(&mut self, _: &mut [u8]) -> usize {
        match *self {}
    }

    pub(crate) fn say(&mut self, _: &[u8]) {
        match *self {}
    }
}
