//! Opens the Ceph images that the command line names.

use farblock_backends::{OpenError, Spec};
use farblock_block::Namespace;
use farblock_rbd::{Image, Name, Rbd};
use std::sync::Arc;
use uuid::Uuid;

/// Opens an image; `text` is the part after `rbd:`.
pub(crate) fn open(
    text: &str,
    block_size: u32,
    read_only: bool,
) -> Result<Arc<dyn Namespace>, OpenError> {
    let name: Name = text.parse().map_err(|error| OpenError::Rbd(format!("{error}")))?;
    let image = Image::open(&name);
    let opened = image.and_then(|image| Rbd::new(image, block_size, read_only));
    Ok(Arc::new(opened.map_err(|error| OpenError::Rbd(error.to_string()))?))
}

/// Refuses invalid names of images, without opening an image.
///
/// # Errors
/// A name is invalid.
pub fn check(spec: &Spec) -> Result<(), String> {
    match spec {
        Spec::Rbd(text) => text.parse::<Name>().map(drop).map_err(|error| error.to_string()),
        spec => spec.parts().iter().try_for_each(check),
    }
}

/// Returns the identity of an image, which is the same on every machine that shares the image.
pub fn identity(text: &str) -> Option<Uuid> {
    farblock_rbd::identity(&text.parse().ok()?)
}
