//! Tests that `sys` and the codes in `request` equal the C headers of this machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use super::sys::{codes, structures};
use crate::memory::Slice;
use crate::request::{Access, Status};

const PACKAGES: &str = "the packages gcc, libc6-dev, libibverbs-dev and librdmacm-dev";

/// A folder that dropping this value removes.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles and runs a C program that prints "NAME VALUE" for each name and C expression.
fn values(expressions: &[(String, String)]) -> BTreeMap<String, usize> {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    source.push_str("#include <rdma/rdma_cma.h>\nint main(void) {\n");
    for (name, expression) in expressions {
        writeln!(source, "printf(\"%s %zu\\n\", \"{name}\", (size_t)({expression}));")
            .expect("a string has room");
    }
    source.push_str("return 0; }\n");
    let scratch = Scratch(env::temp_dir().join(format!("farblock-verbs-{}", process::id())));
    fs::create_dir_all(&scratch.0).expect("the test creates a folder");
    let program = scratch.0.join("layout");
    let text = program.with_extension("c");
    fs::write(&text, source).expect("the test writes the program's source");
    let built = Command::new("cc").arg("-o").arg(&program).arg(&text).output();
    let built = built.unwrap_or_else(|error| panic!("cc does not run ({error}): {PACKAGES}"));
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "cc failed; this test needs {PACKAGES}: {words}");
    let output = Command::new(&program).output().expect("the program runs");
    let lines = String::from_utf8(output.stdout).expect("the program prints UTF-8");
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("two words");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.lines().map(pair).collect()
}

#[test]
fn structures_and_codes_match_the_c_headers() {
    // The name, the C expression, and the value in Rust.
    let mut claims: Vec<(String, String, usize)> = Vec::new();
    for (structure, fields, size) in structures() {
        for field in fields {
            let name = format!("{structure}.{}", field.path);
            let path = field.path;
            let expression = format!("offsetof(struct {structure}, {path})");
            claims.push((name.clone(), expression, field.offset));
            if let Some(bytes) = field.bytes {
                let expression = format!("sizeof(((struct {structure} *)0)->{path})");
                claims.push((format!("sizeof {name}"), expression, bytes));
            }
        }
        if let Some(size) = size {
            let expression = format!("sizeof(struct {structure})");
            claims.push((format!("sizeof {structure}"), expression, size));
        }
    }
    claims
        .extend(codes().into_iter().map(|(name, code)| (name.into(), name.into(), code as usize)));
    let statuses = [
        ("IBV_WC_LOC_LEN_ERR", Status::LOC_LEN_ERR),
        ("IBV_WC_LOC_QP_OP_ERR", Status::LOC_QP_OP_ERR),
        ("IBV_WC_LOC_PROT_ERR", Status::LOC_PROT_ERR),
        ("IBV_WC_WR_FLUSH_ERR", Status::WR_FLUSH_ERR),
        ("IBV_WC_BAD_RESP_ERR", Status::BAD_RESP_ERR),
        ("IBV_WC_LOC_ACCESS_ERR", Status::LOC_ACCESS_ERR),
        ("IBV_WC_REM_INV_REQ_ERR", Status::REM_INV_REQ_ERR),
        ("IBV_WC_REM_ACCESS_ERR", Status::REM_ACCESS_ERR),
        ("IBV_WC_REM_OP_ERR", Status::REM_OP_ERR),
        ("IBV_WC_RETRY_EXC_ERR", Status::RETRY_EXC_ERR),
        ("IBV_WC_RNR_RETRY_EXC_ERR", Status::RNR_RETRY_EXC_ERR),
        ("IBV_WC_FATAL_ERR", Status::FATAL_ERR),
        ("IBV_WC_GENERAL_ERR", Status::GENERAL_ERR),
    ];
    claims.extend(statuses.map(|(name, status)| (name.into(), name.into(), status.0 as usize)));
    let accesses = [
        ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE),
        ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ),
    ];
    claims.extend(accesses.map(|(name, access)| (name.into(), name.into(), access.0 as usize)));
    let expressions: Vec<_> =
        claims.iter().map(|(name, expression, _)| (name.clone(), expression.clone())).collect();
    let found = values(&expressions);
    for (name, _, value) in claims {
        assert_eq!(found.get(&name), Some(&value), "{name} differs from the C headers (left)");
    }
}

#[test]
fn a_slice_has_the_layout_of_ibv_sge() {
    use super::sys::ibv_sge;
    use std::mem::offset_of;
    assert_eq!(size_of::<Slice>(), size_of::<ibv_sge>());
    assert_eq!(offset_of!(Slice, address), offset_of!(ibv_sge, addr));
    assert_eq!(offset_of!(Slice, bytes), offset_of!(ibv_sge, length));
    assert_eq!(offset_of!(Slice, lkey), offset_of!(ibv_sge, lkey));
}
