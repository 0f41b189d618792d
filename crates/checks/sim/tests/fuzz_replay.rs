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
