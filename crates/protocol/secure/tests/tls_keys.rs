//! Compares TLS keys with the results of other implementations.
//!
//! The texts come from `nvme gen-tls-key -m 1 -s 0001…` of nvme-cli 2.13 (libnvme 1.13, Debian 13).
//! The identities and keys of the derivation that nvme-cli now calls `--compat` come from
//! `nvme_insert_tls_key_versioned` of the same libnvme. The values of the specified derivation come
//! from OpenSSL 3.0: `openssl kdf … HKDF` (extract), `… TLS13-KDF` (expand), and `openssl dgst -mac
//! HMAC` for the digest.

use farblock_secure::Derivation::{Compatible, Specified};
use farblock_secure::IdentityForm::{Digest, Names};
use farblock_secure::{Derivation, Hash, IdentityForm, TlsKey, TlsKeyError};

const SHORT: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const LONG: &str = "NVMeTLSkey-1:02:\
                    AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";
const HOST: &str = "nqn.2026-11.h:one";
const SUBSYSTEM: &str = "nqn.2026-11.s:one";

/// Each entry has the text, the form, the derivation, the part of the identity besides the names,
/// and the key.
const VECTORS: [(&str, IdentityForm, Derivation, &str, &str); 8] = [
    (
        SHORT,
        Names,
        Compatible,
        "",
        "b79b5aa5a47d3a86fd17c6566003d9eb3c09fe2a30bffcf9fcb4812a96d7ba51",
    ),
    (
        SHORT,
        Digest,
        Compatible,
        " xVjZ9OrqVDlGPa0sqTpZi/zbnu+zZqgIh194NttITqc=",
        "b680ea5afa9dc2646cd35be2e64846d217fdb0cef87cff732b38976b7af14f29",
    ),
    (
        LONG,
        Names,
        Compatible,
        "",
        "194492f5c9d9d5d1433a574308caf1f0f20d9cfe15ea5793e3f16de5245ad5ac\
         9f4c2733e53a2d78b39fc13a8ccc1760",
    ),
    (
        LONG,
        Digest,
        Compatible,
        " ro1IKL5b3lF6bKkHaky2/tHSjxI/qbglII9rtgz6RObluZBDDWNFBY3qDGOi+E05",
        "b1765a210c41df159f1a7756a11c5e1a0e5093e6e5fecb2db5f88bcc91ec4999\
         a8468804ebc05b85840cfece023e2c59",
    ),
    (
        SHORT,
        Names,
        Specified,
        "",
        "a5420dca1db39b9772f80dd2e56a66c1c312cd942456507a67a637b0a5e9f637",
    ),
    (
        SHORT,
        Digest,
        Specified,
        " Sm+etcN4yXuo8r7tlxCzFaI/phQQ0CS0SnjgOeRn/E0=",
        "2fed52a3d58a5c4ac20b62659b591e8830b37e5a5231d78777023e7483047b86",
    ),
    (
        LONG,
        Names,
        Specified,
        "",
        "bac266af9a56b010ad439718d1cb396bc647d863e0995c3c6d69e336ed106124\
         975b01b4be9a77b819b0328ef7730805",
    ),
    (
        LONG,
        Digest,
        Specified,
        " su0y4V6kTLeNbizWA6AsDGqmcDq1FQNSRiPUKyOtkJHhoC4bCNZvpVh/IEKNQGBb",
        "8717963c5e2a002cf6cceac994fa1205d53621100e62d2808a7b172814df7ce4\
         b3200ae1da0e763650cecf303fe15eb7",
    ),
];

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn derived_identities_and_keys_match_other_implementations() {
    for (text, form, derivation, own, key) in VECTORS {
        let configured = TlsKey::parse(text).unwrap();
        let (version, id) = (u8::from(form == Digest), configured.suite().id());
        let psk = configured.psk(HOST, SUBSYSTEM, form, derivation).unwrap();
        assert_eq!(psk.identity, format!("NVMe{version}R{id:02} {HOST} {SUBSYSTEM}{own}"));
        assert_eq!(hexadecimal(&psk.key), key, "{}", psk.identity);
    }
}

#[test]
fn every_tls_key_round_trips() {
    for text in [SHORT, LONG] {
        assert_eq!(TlsKey::parse(text).unwrap().text().as_str(), text);
    }
    for hash in [Hash::Sha256, Hash::Sha384] {
        let key = TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(7)).unwrap();
        assert_eq!(TlsKey::parse(&key.text()).unwrap(), key);
        assert_eq!((key.suite(), key.is_retained()), (hash, false));
    }
    assert!(TlsKey::generate(Hash::Sha512, &mut |_: &mut [u8]| {}).is_err());
}

#[test]
fn a_retained_key_is_used_without_a_transformation() {
    let retained = TlsKey::parse(&SHORT.replace("-1:01:", "-1:00:")).unwrap();
    assert!(retained.is_retained());
    let [by_digest, _, by_name, _] = &retained.psks(HOST, SUBSYSTEM)[..] else { panic!("four") };
    let other = retained.psk("nqn.2026-11.h:two", SUBSYSTEM, Names, Specified).unwrap();
    assert_ne!(by_name.key, other.key, "the key does not depend on the host's name");
    assert!(by_digest.identity.starts_with("NVMe1R01 "));
}

#[test]
fn derived_keys_with_a_digest_in_the_identity_come_first() {
    let psks = TlsKey::parse(SHORT).unwrap().psks(HOST, SUBSYSTEM);
    let order: Vec<_> = psks.iter().map(|psk| (&psk.identity[..5], psk.derivation)).collect();
    let expected =
        [("NVMe1", Specified), ("NVMe1", Compatible), ("NVMe0", Specified), ("NVMe0", Compatible)];
    assert_eq!(order, expected);
}

#[test]
fn long_names_allow_only_identities_with_a_digest() {
    let long = format!("nqn.2026-11.h:{}", "a".repeat(209));
    let psks = TlsKey::parse(SHORT).unwrap().psks(&long, &long);
    assert_eq!(psks.len(), 2, "{psks:?}");
    assert!(psks.iter().all(|psk| psk.identity.starts_with("NVMe1R01 ")));
    assert!(TlsKey::parse(SHORT).unwrap().psks(&"a".repeat(256), SUBSYSTEM).is_empty());
}

#[test]
fn parse_errors_do_not_contain_the_key() {
    let cases = [
        (SHORT.replace("NVMeTLSkey-1", "DHHC-1"), TlsKeyError::Prefix),
        (SHORT.trim_end_matches(':').to_owned(), TlsKeyError::Form),
        (SHORT.replace(":01:", ":03:"), TlsKeyError::Hash),
        (SHORT.replace(":AAEC", ":!AEC"), TlsKeyError::Base64),
        (SHORT.replace(":AAEC", ":BAEC"), TlsKeyError::Checksum),
        ("NVMeTLSkey-1:01:QUFBQUFBQUE=:".to_owned(), TlsKeyError::Length(4)),
        ("NVMeTLSkey-1:01::".to_owned(), TlsKeyError::Length(0)),
        (SHORT.replace(":01:", ":02:"), TlsKeyError::Mismatch { bytes: 32, hash: Hash::Sha384 }),
        (format!("NVMeTLSkey-1:01:{}:", "A".repeat(1 << 20)), TlsKeyError::Form),
        (String::new(), TlsKeyError::Prefix),
    ];
    for (text, error) in cases {
        assert_eq!(TlsKey::parse(&text).unwrap_err(), error, "{text:.40}");
        assert!(!error.to_string().contains("AAEC"));
    }
    let shown = format!("{:?}", TlsKey::parse(SHORT).unwrap());
    assert_eq!(shown, "TlsKey(32 bytes)");
}

#[test]
fn a_truncated_or_changed_key_is_refused() {
    for cut in 0..SHORT.len() {
        assert!(TlsKey::parse(&SHORT[..cut]).is_err(), "cut at {cut}");
        let mut changed = SHORT.as_bytes().to_vec();
        changed[cut] ^= 1;
        // `00` marks a retained key. The checksum does not cover this part.
        let is_hash = (13..15).contains(&cut);
        assert!(is_hash || TlsKey::parse(&String::from_utf8(changed).unwrap()).is_err(), "{cut}");
    }
}
