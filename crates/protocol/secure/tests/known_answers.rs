//! Compares every hash function, group and direction with another implementation. `vectors.py` in
//! this folder printed the expected hash values of whole conversations.

#[allow(dead_code, reason = "the other files use the rest of it")]
mod pair;

use farblock_secure::{Agreed, Controller, ControllerTerms, Group, Hash, Host, HostTerms};
use pair::vectors::{controller_secret, converse, hexadecimal, host_secret, random};
use pair::{controller_terms, host_terms};

/// Returns the hash of the conversation after AUTH_Negotiate, and the agreed parameters.
fn transcript(hash: Hash, group: Group, is_mutual: bool, seed: u32) -> (String, Agreed) {
    let mut host_entropy = random(11);
    let terms = HostTerms {
        host_secret: host_secret(),
        controller_secrets: vec![controller_secret(); usize::from(is_mutual)],
        hashes: vec![hash],
        groups: vec![group],
        ..host_terms()
    };
    let known = ControllerTerms {
        host_secrets: vec![host_secret()],
        controller_secret: Some(controller_secret()),
        groups: Group::ALL.to_vec(),
        ..controller_terms()
    };
    let mut host = Host::new(terms, &mut host_entropy);
    let mut controller = Controller::new(known.into());
    let (said, agreed) = converse(&mut host, host_entropy, &mut controller, random(seed));
    (hexadecimal(said), agreed)
}

#[test]
fn transcripts_match_another_implementation() {
    for (hash, group, is_mutual, expected) in TRANSCRIPTS {
        let (hash, group) = (Hash::from_id(hash).unwrap(), Group::from_id(group).unwrap());
        let (said, agreed) = transcript(hash, group, is_mutual, 7);
        assert_eq!(agreed, Agreed { hash, group, is_mutual });
        assert_eq!(said, expected, "{agreed:?}");
    }
}

#[test]
fn a_shared_secret_with_leading_zeroes_is_padded() {
    let (seed, expected) = LEADING_ZERO;
    assert_eq!(transcript(Hash::Sha256, Group::Ffdhe2048, true, seed).0, expected);
}

const TRANSCRIPTS: [(u8, u8, bool, &str); 36] = [
    (1, 1, false, "ea366febc773e166a5356c80e29ba3016796c9b086bb096f109d3872162de7bb"),
    (1, 1, true, "41bc49cd50d5872541cbe76ed9ffad2eeb3860822b1044c45472ed1201a2d903"),
    (1, 2, false, "2064a6835a1234ae124dc8f42028e53b4dd61e70eeb4eb257e2fb895fc3aefc0"),
    (1, 2, true, "60618796b63fce6acd0a505b5314f7360ce6c01e6e9453ec7209c34fdbf556c0"),
    (1, 3, false, "c0596876ac5f0e948bc325ff844efe9b623c68eb905dfce3b71b5ea61a1d2b90"),
    (1, 3, true, "3fdb95ebd3d1ee699a77026b192dbf9ce1dec2b936ac883f6a579e583b2a51b5"),
    (1, 4, false, "b306bcee09d8e95b7ca73dd3d2c347380ca128ed9535a455c5b9ec70ee06be23"),
    (1, 4, true, "9c33120c4247b64224b7c4c700e5ec4b5d3fce72cb540c162cc806c54880af89"),
    (1, 5, false, "ed886f6d35d58ae0155afab58b74b1639c8b664d2a4f344f8b666314e9bcd8e0"),
    (1, 5, true, "141c41d9f99d7935689ebdaae3019a0078bb247bf3a58892823815a35161eb17"),
    (1, 0, false, "269f67c0ce99da8dca1ab3002370fd5fe9f0d85b3d3aee143414d2e7bd6c7091"),
    (1, 0, true, "8a185f921176e1226fdd5dac01eb040df5e72abe0f64a048f1b968291f6e57e0"),
    (2, 1, false, "1138b13436b5778d829b8bac589096048db6f889b206fc29c1b7f9210f749e68"),
    (2, 1, true, "cbe91607e9e43ee31cc9713cc8f2bd011a49639fdb72e9aad2913aec1d40f520"),
    (2, 2, false, "e215bbb289969901cfb50893b6158ddb3ef10ef6da4ab19d9ae2cb358f13fe0b"),
    (2, 2, true, "ce8683aa9e9f0a756be25a08c30eb462db6a9dd43972f022759a59523b90fde9"),
    (2, 3, false, "291bb3a1b7af3b741adb60ac0264213de95f2018d8935689ba32d194738ff290"),
    (2, 3, true, "9e5c53317c39b908d1b072f82d29dc021c816a6802decdca1b5ddde69ee384e3"),
    (2, 4, false, "7192ce4401899e538ac40f00ce3514003cd8d48cd4545a7b7ae8ad91dd20ddca"),
    (2, 4, true, "914d4ab04b9d53aa6915b16a088f2afbd3d2c2d9e8a82588ad2b404c578c8c1c"),
    (2, 5, false, "8c83a139be572945b0efa09529aaa84c2dacdd78c48191aa7651a1d4b83492a7"),
    (2, 5, true, "3d54d4203d2d75ab96535d7a479873211819881e1e03175020e31c5283a7c3c6"),
    (2, 0, false, "d99b68f1b190ebc3abb34030630f055ef5899b4c9f82ec10a2fef4313074b564"),
    (2, 0, true, "312e9354d3da5a6fe5e28bc76c4c8d9461939eaefe72cbda9c56e51286b91e3d"),
    (3, 1, false, "2e93724f404c7aa57f05f0be8fe9b88f2c445f41f96ce296c3ae382f93ce6f64"),
    (3, 1, true, "7887797925e1d8c943588127e0f65768acab7ab132e2f119fc64ed4f58d32f7c"),
    (3, 2, false, "a80518bdcfd97470b957223e79200a64ea43f4fa22f423012d6af41eeddd5f7b"),
    (3, 2, true, "540077e552f050a53122e2406c7b4647090422b0197d0edbedfa621f01e0ce33"),
    (3, 3, false, "137170e530d7d29ea0183d31189e2af719e463440b3c56ca63d8dca095e7463a"),
    (3, 3, true, "a103e582c535ac34090b31280b08c02fe1bbacae78de57d1014142810c866356"),
    (3, 4, false, "075ed889e1808f1f808aabee53c47085d1bee42557fdd194a9c6944884da9835"),
    (3, 4, true, "8af72508bbbbb1f8af073d37e6041773e85e92de6955a962576f47247a0ad3e9"),
    (3, 5, false, "72c5335bf803cb1e44b0756e942f28a6b1426e3ddf07b8bfdcc27a932283b10a"),
    (3, 5, true, "61e97a0e0fee6f93bcfda6f9c263fda5871d8388110ffab7ddf530fac6047c76"),
    (3, 0, false, "91d41befe149865b84ea52f2f8a5a24b3db31ce631340b6732ecff3970b1497b"),
    (3, 0, true, "23972a76718ef0c86ed5c1823f6ea356ee870f20f558a6f303aa9b0d22e3a744"),
];
/// A seed whose shared secret starts with 00f83e, and the expected hash.
const LEADING_ZERO: (u32, &str) =
    (224, "2d5f5a6b5d17a7119d743a8148dd00aaee001d85ae4149c773a1e289a2802189");
