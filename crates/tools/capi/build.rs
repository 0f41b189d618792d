//! Gives the shared library its SONAME.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Below 1.0, a change of the second number is the incompatible one.
        let part = |name| std::env::var(name).expect("cargo sets it");
        let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarblock.so.{abi}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
