//! Sets the SONAME of the shared library.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // In versions below 1.0, a change of the second number is an incompatible change.
        let part = |name| std::env::var(name).expect("cargo sets the variable");
        let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarblock.so.{abi}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
