//! AES-GCM with `ring`. `ring` works only in place, so this module copies the data first, one
//! record at a time.

use super::super::copy::copy;
use super::{NONCE_BYTES, Sealing, TAG_BYTES};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// A key for `ring`.
pub(in super::super) struct Key(Box<LessSafeKey>);

impl Key {
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        let key = UnboundKey::new(algorithm, key).ok()?;
        Some(Self(Box::new(LessSafeKey::new(key))))
    }

    pub(super) fn seal(&self, what: &Sealing<'_>, body: &mut [u8]) -> Option<()> {
        let (content, rest) = body.split_at_mut(what.content.len());
        copy(content, what.content);
        rest[0] = what.kind;
        self.seal_in_place(what.nonce, what.header, body)
    }

    pub(super) fn seal_in_place(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &mut [u8],
    ) -> Option<()> {
        let (inner, tag) = body.split_at_mut(body.len().checked_sub(TAG_BYTES)?);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let made = self.0.seal_in_place_separate_tag(nonce, Aad::from(header), inner).ok()?;
        tag.copy_from_slice(made.as_ref());
        Some(())
    }

    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &[u8],
        plain: &mut [u8],
    ) -> Option<usize> {
        copy(plain, body);
        let nonce = Nonce::assume_unique_for_key(nonce);
        Some(self.0.open_in_place(nonce, Aad::from(header), plain).ok()?.len())
    }
}
