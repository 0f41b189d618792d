//! Checks that only `subtle` compares secrets and proofs. An operator in the source, or a derived
//! `PartialEq`, would stop at the first byte that differs.

use std::fs;
use std::path::{Path, PathBuf};

/// Types that hold a secret, or a value derived from one.
const HOLDERS: [&str; 4] = ["Zeroizing<", "Digested", "KeyPair", "&[u8]"];
/// Words that name a secret.
const WORDS: [&str; 8] =
    ["key", "secret", "proof", "response", "psk", "shared", "digest", "exponent"];
/// Expressions that operators may compare: lengths, names, OpenSSL's names of hash functions, and
/// whole `TlsPsk`s and `TlsKey`s. The operators of these two types use `subtle`.
const HARMLESS: [&str; 8] = [
    ".len()",
    ".is_empty()",
    ".identity",
    ".hash",
    "bytes()",
    "== shown.psk",
    "known == key",
    "get_handshake_digest",
];

fn sources(crate_name: &str) -> Vec<(PathBuf, String)> {
    let mut folders =
        vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(crate_name).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name != "tests.rs") {
                let text = fs::read_to_string(&path).expect("a readable file");
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("").to_owned();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 2, "{found:?}");
    found
}

/// Returns the lines of source that compare a secret with an operator.
fn comparisons(text: &str) -> Vec<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let compares = |line: &&str| line.contains(" == ") || line.contains(" != ");
    let names = |line: &&str| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect::<Vec<_>>();
        WORDS.iter().any(|word| words.contains(word))
    };
    let is_harmless = |line: &&str| HARMLESS.iter().any(|what| line.contains(what));
    code.filter(compares).filter(names).filter(|line| !is_harmless(line)).collect()
}

/// Returns the types that hold a secret and derive a comparison operator.
fn derived(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split("#[derive(").skip(1) {
        let (traits, rest) = part.split_once(")]").unwrap_or((part, ""));
        let body = rest.split("\n}").next().unwrap_or("");
        let is_type = body.contains("struct ") || body.contains("enum ");
        let holds = HOLDERS.iter().any(|holder| body.contains(holder));
        if is_type && holds && traits.contains("PartialEq") {
            found.push(body.lines().find(|line| line.contains(" {")).unwrap_or(body).to_owned());
        }
    }
    found
}

#[test]
fn secrets_are_compared_in_constant_time() {
    // A received message is not a secret.
    const RECEIVED: [&str; 1] = ["pub(crate) enum Message<'a> {"];
    for (path, text) in sources("secure").into_iter().chain(sources("tls")) {
        let found = comparisons(&text);
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
        let mut found = derived(&text);
        found.retain(|name| !RECEIVED.contains(&name.as_str()));
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}

#[test]
fn the_check_finds_comparisons_of_secrets() {
    for bad in ["if secret == other {", "    self.key != theirs", "ok(&proof == response)"] {
        assert_eq!(comparisons(bad).len(), 1, "{bad}");
    }
    for good in ["if key.len() == 32 {", "// the secret == it", "if host == key_of {", "a == b"] {
        assert_eq!(comparisons(good).len(), 0, "{good}");
    }
    let holder = "#[derive(Clone, PartialEq)]\npub struct A {\n    a: Zeroizing<Vec<u8>>,\n}\n";
    assert_eq!(derived(holder), ["pub struct A {"]);
    assert!(derived(&holder.replace("PartialEq", "Debug")).is_empty());
}
