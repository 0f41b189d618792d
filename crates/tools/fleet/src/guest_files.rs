//! The files to boot guests from.

use std::path::{Path, PathBuf};

/// The name of QEMU's program in packages.
const QEMU: &str = "qemu-system-x86_64";

/// The files that a guest needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFiles {
    /// The path of QEMU.
    pub qemu: PathBuf,
    /// The path of a Linux kernel.
    pub kernel: PathBuf,
    /// The path of the kernel's initial file system. It contains fio, and an `/init` like the one
    /// in `interop/linux/guest`.
    pub image: PathBuf,
}

impl GuestFiles {
    /// Finds QEMU in the search path. Uses the kernel and image at the given paths. Without paths,
    /// uses the kernel and image that `interop/linux/setup.sh` has put into the folder.
    ///
    /// # Errors
    /// A file is missing. The error is the end of a sentence, and says how to get the file.
    pub fn find(
        path: &std::ffi::OsStr,
        folder: Option<&Path>,
        kernel: Option<&Path>,
        image: Option<&Path>,
    ) -> Result<GuestFiles, String> {
        let found = std::env::split_paths(path).map(|it| it.join(QEMU)).find(|it| it.is_file());
        let qemu = found.ok_or_else(|| {
            format!(
                "needs {QEMU} for its guests, which is not installed: install it (Debian: apt \
                 install qemu-system-x86), or omit --guests"
            )
        })?;
        if let Some(missing) = [kernel, image].into_iter().flatten().find(|it| !it.is_file()) {
            return Err(format!(
                "needs {} for its guests, which is not a file: name an existing file",
                missing.display()
            ));
        }
        let kernel = kernel.map(Path::to_path_buf).or_else(|| Some(folder?.join("vmlinux")));
        let image = image.map(Path::to_path_buf).or_else(|| newest_image(folder?));
        let is_there = |it: &PathBuf| it.is_file();
        let whole = kernel.filter(is_there).zip(image.filter(is_there));
        let (kernel, image) = whole.ok_or_else(|| {
            let folder = folder.map_or_else(|| "no home folder".into(), Path::to_string_lossy);
            format!(
                "needs a kernel and an image for its guests, and they are missing ({folder}): \
                 create them with interop/linux/setup.sh from farblock's sources, or name yours \
                 with --guest-kernel and --guest-image"
            )
        })?;
        Ok(GuestFiles { qemu, kernel, image })
    }
}

/// Finds the newest image, since each version of the scripts creates its own image.
fn newest_image(folder: &Path) -> Option<PathBuf> {
    let is_image = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("image-") && name.ends_with(".cpio")
    };
    let images = std::fs::read_dir(folder).ok()?.flatten().map(|it| it.path()).filter(is_image);
    images.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok())
}
