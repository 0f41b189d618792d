use super::*;

/// Returns a source of counting bytes, which suffices for keys in tests. The bytes are not random.
fn counting(start: u8) -> impl FnMut(&mut [u8]) {
    let mut next = start;
    move |out| {
        out.fill_with(|| {
            next = next.wrapping_mul(31).wrapping_add(7);
            next
        });
    }
}

#[test]
fn both_sides_derive_the_same_shared_secret() {
    let mut entropy = counting(1);
    for group in Group::ALL {
        let one = KeyPair::generate(group, &mut entropy);
        let other = KeyPair::generate(group, &mut entropy);
        let shared = one.shared(other.public()).unwrap();
        assert_eq!(shared, other.shared(one.public()).unwrap());
        assert_eq!(shared.map_or(0, |shared| shared.len()), group.bytes(), "{group}");
    }
}

#[test]
fn public_values_that_reveal_the_secret_are_refused() {
    let group = Group::Ffdhe2048;
    let keys = KeyPair::generate(group, &mut counting(2));
    let prime = group.modulus().get();
    let less = |by: u8| prime.wrapping_sub(group.number(&[by]).unwrap()).to_be_bytes();
    let bad: [&[u8]; 9] =
        [&[], &[0], &[1], &[0; 256], &less(0), &less(1), &[0xff; 256], &[2; 257], &[0; 1024]];
    for value in bad {
        assert_eq!(keys.shared(value), Err(BadValue), "{value:?}");
    }
    for good in [&[2][..], &less(2)] {
        assert!(keys.shared(good).is_ok());
    }
    let null = KeyPair::generate(Group::Null, &mut counting(3));
    assert_eq!(null.shared(&[2]), Err(BadValue));
    assert_eq!(null.shared(&[]), Ok(None));
}
