//! By AWS-LC, where the processor has AES and carry-less multiplication on 64 bytes at a time: half
//! as fast again as `ring`, and from one place to another.
//!
//! Its Rust interface seals in place alone; its C interface, which is used here, does not mind.

use super::{NONCE_BYTES, Sealing, TAG_BYTES};
use aws_lc_sys::{
    EVP_AEAD_CTX, EVP_AEAD_CTX_free, EVP_AEAD_CTX_new, EVP_AEAD_CTX_open_gather,
    EVP_AEAD_CTX_seal_scatter, EVP_aead_aes_128_gcm, EVP_aead_aes_256_gcm,
};
use std::ptr::NonNull;

/// See the module's text. Owns what it points to, which is wiped when it is freed.
pub(in super::super) struct Key(NonNull<EVP_AEAD_CTX>);

// SAFETY: nothing of it belongs to a thread, and what is called with it only reads it.
unsafe impl Send for Key {}

/// Whether the processor has what AWS-LC is faster by. It looks by itself, too, and would take
/// narrower instructions than `ring` without.
pub(super) fn is_fast() -> bool {
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

impl Key {
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        // SAFETY: both give a pointer to what is never freed. `key` is read as far as it goes.
        let context = unsafe {
            let algorithm = match key.len() {
                16 => EVP_aead_aes_128_gcm(),
                32 => EVP_aead_aes_256_gcm(),
                _ => return None,
            };
            EVP_AEAD_CTX_new(algorithm, key.as_ptr(), key.len(), TAG_BYTES)
        };
        NonNull::new(context).map(Self)
    }

    pub(super) fn seal(&self, what: &Sealing<'_>, body: &mut [u8]) -> Option<()> {
        let (sealed, behind) = body.split_at_mut_checked(what.content.len())?;
        let content = (what.content.as_ptr(), sealed.as_mut_ptr(), sealed.len());
        // SAFETY: `content` is read, and `sealed`, which is as long and elsewhere, written.
        unsafe { self.scatter(what.nonce, what.header, content, &[what.kind], behind) }
    }

    pub(super) fn seal_in_place(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &mut [u8],
    ) -> Option<()> {
        let (inner, tag) = body.split_at_mut(body.len().checked_sub(TAG_BYTES)?);
        let into = inner.as_mut_ptr();
        // SAFETY: `inner` is read and written where it is.
        unsafe { self.scatter(nonce, header, (into, into, inner.len()), &[], tag) }
    }

    /// Seals so many bytes from the first place into the second, then `more` and the tag into
    /// `behind`.
    ///
    /// # Safety
    /// The first place can be read and the second one written; they are the same, or apart.
    unsafe fn scatter(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        (from, into, length): (*const u8, *mut u8, usize),
        more: &[u8],
        behind: &mut [u8],
    ) -> Option<()> {
        let mut written = 0;
        // SAFETY: the context is whole, the caller answers for `from` and `into`, and everything
        // else is a slice with its length; no more than that of `behind` is written there.
        let is_sealed = unsafe {
            EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                into,
                behind.as_mut_ptr(),
                &raw mut written,
                behind.len(),
                nonce.as_ptr(),
                nonce.len(),
                from,
                length,
                more.as_ptr(),
                more.len(),
                header.as_ptr(),
                header.len(),
            )
        };
        (is_sealed == 1 && written == behind.len()).then_some(())
    }

    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &[u8],
        plain: &mut [u8],
    ) -> Option<usize> {
        let (sealed, tag) = body.split_at(body.len().checked_sub(TAG_BYTES)?);
        let plain = plain.get_mut(..sealed.len())?;
        // SAFETY: the context is whole, and everything else is a slice with its length; `plain`,
        // which nothing else is in, is as long as what is opened into it.
        let is_opened = unsafe {
            EVP_AEAD_CTX_open_gather(
                self.0.as_ptr(),
                plain.as_mut_ptr(),
                nonce.as_ptr(),
                nonce.len(),
                sealed.as_ptr(),
                sealed.len(),
                tag.as_ptr(),
                tag.len(),
                header.as_ptr(),
                header.len(),
            )
        };
        (is_opened == 1).then_some(sealed.len())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: it is whole, and used by nobody else.
        unsafe { EVP_AEAD_CTX_free(self.0.as_ptr()) };
    }
}
