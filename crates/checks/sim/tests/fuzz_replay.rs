//! The fuzz targets' bodies over random input, on any toolchain.

use farblock_sim::fuzz;

#[test]
fn framer() {
    fuzz::replay(fuzz::framer, 0xf7a3e5, 20_000);
}

#[test]
fn session() {
    fuzz::replay(fuzz::session, 0x5e5510, 20_000);
}

#[test]
fn authentication() {
    // Nobody touches anything, with and without the secrets.
    (0..4).for_each(|choice| fuzz::authentication(&[choice]));
    fuzz::replay(fuzz::authentication, 0xa07, 5_000);
}

#[test]
fn keys() {
    fuzz::keys(b"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    fuzz::keys(b"NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    fuzz::replay(fuzz::keys, 0x4e75, 2_000);
}
