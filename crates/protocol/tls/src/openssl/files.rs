//! The files that OpenSSL is in, and who says where they are: the system's loader, or on Windows,
//! where no OpenSSL is the system's, whoever put them into the program's folder.

use libloading::Library;

/// Versions that are good enough, the oldest first.
pub(super) const VERSIONS: [u32; 2] = [3, 4];

/// Loads a version: every library that has functions of it.
#[cfg(unix)]
pub(super) fn load(version: u32) -> Result<Vec<Library>, String> {
    // It brings `libcrypto`, whose functions are found through it.
    let name = format!("libssl.so.{version}");
    // SAFETY: it is a library of the system, whose beginning does nothing to ours.
    let library = unsafe { Library::new(name) }.map_err(|error| words(&error))?;
    Ok(vec![library])
}

/// What to do about it.
#[cfg(unix)]
pub(super) fn advice() -> String {
    "install the package libssl3 or openssl-libs".to_owned()
}

/// Loads a version: every library that has functions of it.
///
/// From the program's own folder alone: anybody can leave a library where Windows looks otherwise,
/// in the working folder or one of `PATH`, and it would do what it likes in our name. What the
/// libraries need themselves may be beside them, or Windows' own.
#[cfg(windows)]
pub(super) fn load(version: u32) -> Result<Vec<Library>, String> {
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, Library as Loaded,
    };
    let folder = folder()?;
    // The second needs the first, and has what is loaded already.
    let load = |name: String| {
        let path = folder.join(&name);
        if !path.is_file() {
            return Err(format!("there is no {name}"));
        }
        let flags = LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32;
        // SAFETY: whoever could put it there could have replaced the program.
        let library = unsafe { Loaded::load_with_flags(path, flags) };
        library.map(Library::from).map_err(|error| format!("{name}: {}", words(&error)))
    };
    file_names(version).into_iter().map(load).collect()
}

/// What to do about it.
#[cfg(windows)]
pub(super) fn advice() -> String {
    let [crypto, ssl] = file_names(VERSIONS[0]);
    let folder = folder().map_or("the program's folder".to_owned(), |f| f.display().to_string());
    format!("put {crypto} and {ssl} into {folder}, the only place where they are looked for")
}

/// Where the program is.
#[cfg(windows)]
fn folder() -> Result<std::path::PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    program.parent().map(Into::into).ok_or_else(|| "the program is in no folder".to_owned())
}

/// What OpenSSL calls its files, for each kind of processor.
#[cfg(windows)]
fn file_names(version: u32) -> [String; 2] {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "-x64",
        "aarch64" => "-arm64",
        _ => "",
    };
    ["libcrypto", "libssl"].map(|name| format!("{name}-{version}{processor}.dll"))
}

/// What an error of the loader's means; most say only which call has failed.
pub(super) fn words(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}
