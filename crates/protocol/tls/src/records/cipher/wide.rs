//! AES-GCM with AWS-LC, for processors that execute AES and carry-less multiplication on 64 bytes
//! at a time. On these processors, AWS-LC is one and a half times as fast as `ring`, and works from
//! one buffer into another.
//!
//! AWS-LC's Rust interface encrypts only in place. This module uses its C interface, which does not
//! have this restriction.

use super::{NONCE_BYTES, Sealing, TAG_BYTES};
use aws_lc_sys::{
    EVP_AEAD_CTX, EVP_AEAD_CTX_free, EVP_AEAD_CTX_new, EVP_AEAD_CTX_open_gather,
    EVP_AEAD_CTX_seal_scatter, EVP_aead_aes_128_gcm, EVP_aead_aes_256_gcm,
};
use std::ptr::NonNull;

/// A key for AWS-LC. It owns the context, which AWS-LC wipes when it frees the context.
pub(in super::super) struct Key(NonNull<EVP_AEAD_CTX>);

// SAFETY: the context is not bound to a thread, and the functions called with it only read it.
unsafe impl Send for Key {}

/// Returns whether the processor has the instructions that make AWS-LC faster. Without them, AWS-LC
/// falls back to narrower instructions than `ring` uses.
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
        // SAFETY: both functions return a pointer to static data. AWS-LC reads `key` up to its
        // length.
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
        // SAFETY: the call reads `content` and writes `sealed`, which has the same length and is
        // disjoint.
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
        // SAFETY: the call reads and writes `inner` in place.
        unsafe { self.scatter(nonce, header, (into, into, inner.len()), &[], tag) }
    }

    /// Encrypts bytes from `from` into `into`. Then encrypts `more`, and writes it with the tag
    /// into `behind`.
    ///
    /// # Safety
    /// `from` is valid for reads and `into` for writes. The two ranges are equal or disjoint.
    unsafe fn scatter(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        (from, into, length): (*const u8, *mut u8, usize),
        more: &[u8],
        behind: &mut [u8],
    ) -> Option<()> {
        let mut written = 0;
        // SAFETY: the context is valid, and the caller guarantees `from` and `into`. Every other
        // pointer is a slice with its length. The call writes at most `behind.len()` bytes into
        // `behind`.
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
        // SAFETY: the context is valid, and every other pointer is a slice with its length. `plain`
        // does not overlap the other slices and is as long as the opened bytes.
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
        // SAFETY: the context is valid, and nothing else uses it.
        unsafe { EVP_AEAD_CTX_free(self.0.as_ptr()) };
    }
}
