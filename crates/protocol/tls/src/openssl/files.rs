//! OpenSSL's library files. The system's loader finds these files. Windows has no system OpenSSL,
//! so there the files are in the program's folder.

use libloading::Library;

/// The supported major versions, oldest first.
pub(super) const VERSIONS: [u32; 2] = [3, 4];

/// Loads a version: every library with functions that this crate uses.
#[cfg(unix)]
pub(super) fn load(version: u32) -> Result<Vec<Library>, String> {
    // `libssl` loads `libcrypto`, whose functions the loader finds through `libssl`.
    let name = format!("libssl.so.{version}");
    // SAFETY: this is a library of the system, whose initialisers do not affect this program.
    let library = unsafe { Library::new(name) }.map_err(|error| words(&error))?;
    Ok(vec![library])
}

/// Returns the advice for the operator if no version can be loaded.
#[cfg(unix)]
pub(super) fn advice() -> String {
    "install the package libssl3 or openssl-libs".to_owned()
}

/// Loads a version: every library with functions that this crate uses.
///
/// Loads only from the program's own folder. Windows would also search the working folder and
/// `PATH`. Other users may leave a library there, which would then run with the rights of this
/// process. The libraries' own dependencies may be in the same folder, or part of Windows.
#[cfg(windows)]
pub(super) fn load(version: u32) -> Result<Vec<Library>, String> {
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, Library as Loaded,
    };
    let folder = folder()?;
    // `libssl` needs `libcrypto`. The loader uses a library that is already loaded.
    let load = |name: String| {
        let path = folder.join(&name);
        if !path.is_file() {
            return Err(format!("{name} does not exist"));
        }
        let flags = LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32;
        // SAFETY: a user who can put a library there could also have replaced the program.
        let library = unsafe { Loaded::load_with_flags(path, flags) };
        library.map(Library::from).map_err(|error| format!("{name}: {}", words(&error)))
    };
    file_names(version).into_iter().map(load).collect()
}

/// Returns the advice for the operator if no version can be loaded.
#[cfg(windows)]
pub(super) fn advice() -> String {
    let [crypto, ssl] = file_names(VERSIONS[0]);
    let folder = folder().map_or("the program's folder".to_owned(), |f| f.display().to_string());
    format!("put {crypto} and {ssl} into {folder}, because farblock loads them only from there")
}

/// Returns the program's folder.
#[cfg(windows)]
fn folder() -> Result<std::path::PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    program
        .parent()
        .map(Into::into)
        .ok_or_else(|| "the folder of the program is unknown".to_owned())
}

/// Returns the names of OpenSSL's files on this kind of processor.
#[cfg(windows)]
fn file_names(version: u32) -> [String; 2] {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "-x64",
        "aarch64" => "-arm64",
        _ => "",
    };
    ["libcrypto", "libssl"].map(|name| format!("{name}-{version}{processor}.dll"))
}

/// Returns the text of a loader's error with its cause, since most errors only name the failed
/// call.
pub(super) fn words(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}
