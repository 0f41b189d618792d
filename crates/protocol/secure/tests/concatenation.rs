//! Tests the TLS key of an authentication. One test compares the key with another implementation:
//! `vectors.py` in this folder printed the expected values. In other tests, the two sides disagree
//! about the channel.

#[allow(dead_code, reason = "the other files use the rest of it")]
mod pair;

use farblock_secure::{
    Concatenation, Controller, Demand, Derivation, Failure, Group, Hash, Host, HostTerms, Step,
    TlsPsk,
};
use farblock_wire::auth::FailureReason;
use pair::vectors::{controller_secret, converse, hexadecimal, host_secret, random};
use pair::{HOST, SUBSYSTEM, answer, answer_from, controller_terms, host_terms, numbers};
use sha2::Digest;

const NEW: Concatenation = Concatenation::NEW_TLS_PSK;
const REPLACE: Concatenation = Concatenation::REPLACE_TLS_PSK;

/// Returns a hash of the conversation after AUTH_Negotiate and of the generated keys.
fn transcript(seed: u32, hash: Hash, is_mutual: bool, asked: Concatenation) -> String {
    let (mut host_entropy, controller_entropy) = (random(11), random(seed));
    let terms = HostTerms {
        host_secret: host_secret(),
        controller_secrets: vec![controller_secret(); usize::from(is_mutual)],
        hashes: vec![hash],
        concatenation: asked,
        ..host_terms()
    };
    let mut known = controller_terms();
    known.host_secrets = vec![host_secret()];
    known.controller_secret = Some(controller_secret());
    let mut host = Host::new(terms, &mut host_entropy);
    let mut controller = Controller::new(known.into()).offering(asked);
    let (mut said, agreed) = converse(&mut host, host_entropy, &mut controller, controller_entropy);
    assert_eq!((agreed.hash, agreed.is_mutual), (hash, is_mutual));
    let psks = host.take_psks();
    assert_eq!(psks, controller.take_psks());
    assert!(
        host.take_psks().is_empty() && controller.take_psks().is_empty(),
        "no key is returned twice"
    );
    said.update(keys(&psks));
    said.update(&psks[0].identity);
    hexadecimal(said)
}

fn keys(psks: &[TlsPsk]) -> String {
    let [specified, unframed] = psks else { panic!("two keys") };
    assert_eq!(specified.derivation, Derivation::Specified);
    assert_eq!(unframed.derivation, Derivation::Unframed);
    assert!(specified.is_generated() && specified.identity == unframed.identity);
    psks.iter().flat_map(|psk| psk.key.iter().map(|byte| format!("{byte:02x}"))).collect()
}

#[test]
fn generated_keys_match_another_implementation() {
    for (seed, hash, is_mutual, asked, expected) in TRANSCRIPTS {
        let (hash, asked) = (Hash::from_id(hash).unwrap(), Concatenation(asked));
        assert_eq!(transcript(seed, hash, is_mutual, asked), expected, "{seed} {hash} {asked:?}");
    }
}

/// Returns the result for a host that requests a channel and a controller that offers one.
fn meet(
    asked: Concatenation,
    offered: Concatenation,
    demand: Demand,
    change: impl FnOnce(&mut HostTerms),
) -> Result<(Vec<TlsPsk>, bool), Failure> {
    let mut terms = HostTerms { concatenation: asked, ..host_terms() };
    change(&mut terms);
    let known = farblock_secure::ControllerTerms { demand, ..controller_terms() };
    let mut controller = Controller::new(known.into()).offering(offered);
    let mut host = Host::new(terms, &mut numbers(1));
    let agreed = answer(&mut host, &mut controller)?;
    let psks = controller.take_psks();
    assert_eq!(psks, host.take_psks());
    assert_eq!(psks.is_empty(), !controller.has_concatenated());
    Ok((psks, agreed.is_mutual))
}

#[test]
fn each_authentication_generates_another_key() {
    let known = controller_terms();
    let key = |seed| {
        let terms = HostTerms { concatenation: NEW, ..host_terms() };
        let mut controller = Controller::new(known.clone().into()).offering(NEW);
        let mut host = Host::new(terms, &mut numbers(1));
        answer_from(seed, &mut host, &mut controller).expect("a successful authentication");
        controller.take_psks().swap_remove(0)
    };
    let (one, other) = (key(1), key(2));
    assert_ne!(one.identity, other.identity);
    assert_ne!(one.key, other.key);
    assert!(one.identity.contains(HOST) && one.identity.contains(SUBSYSTEM));
}

#[test]
fn a_restarted_authentication_generates_only_one_key() {
    let mut controller = Controller::new(controller_terms().into()).offering(NEW);
    let terms = HostTerms { concatenation: NEW, ..host_terms() };
    let mut gone = Host::new(terms, &mut numbers(1));
    for _ in 0..2 {
        let Step::Send(message) = gone.step() else { panic!("a message to send") };
        controller.handle(&message, &mut numbers(2));
        gone.handle_sent();
        if let Some(challenge) = controller.take_message().filter(|_| message[1] == 0) {
            gone.handle_received(&challenge, &mut numbers(1));
        }
    }
    // The host has proved its identity, but the exchange is not complete. Now the host restarts
    // without a channel.
    let mut host = Host::new(host_terms(), &mut numbers(3));
    answer(&mut host, &mut controller).expect("a successful authentication");
    assert!(!controller.has_concatenated() && controller.take_psks().is_empty());
}

#[test]
fn concatenation_succeeds_only_if_it_is_offered() {
    let none = Concatenation::NONE;
    for asked in [NEW, REPLACE, Concatenation(1), Concatenation(4), Concatenation(255)] {
        for offered in [none, NEW, REPLACE] {
            let met = meet(asked, offered, Demand::Authentication, |_| {});
            match met {
                Ok((psks, _)) => assert!(asked == offered && !psks.is_empty()),
                Err(failure) => {
                    assert_eq!(failure.reason, FailureReason::CONCATENATION_MISMATCH);
                    assert_ne!(asked, offered);
                }
            }
        }
    }
    let (psks, _) =
        meet(none, NEW, Demand::Authentication, |_| {}).expect("the controller demands no channel");
    assert!(psks.is_empty());
}

#[test]
fn a_host_that_must_request_concatenation_is_refused_without_it() {
    let none = Concatenation::NONE;
    let refused = meet(none, NEW, Demand::SecureChannel, |_| {}).unwrap_err();
    assert_eq!(refused.reason, FailureReason::CONCATENATION_MISMATCH);
    assert!(refused.sentence.contains("--concat"), "{refused}");
    assert!(meet(NEW, NEW, Demand::SecureChannel, |_| {}).is_ok());
    // A queue that uses TLS with the host's own key needs no other key.
    assert!(meet(none, none, Demand::SecureChannel, |_| {}).is_ok());
    let one_way = |terms: &mut HostTerms| terms.controller_secrets.clear();
    for asked in [none, NEW] {
        let refused = meet(asked, asked, Demand::Mutual, one_way).unwrap_err();
        assert_eq!(refused.reason, FailureReason::FAILED);
        assert!(
            meet(asked, asked, Demand::Mutual, |_| {})
                .expect("a host that requests both is accepted")
                .1
        );
        assert!(
            !meet(asked, asked, Demand::Authentication, one_way)
                .expect("the controller demands no channel")
                .1
        );
    }
}

#[test]
fn concatenation_needs_a_key_exchange_and_a_hash_of_a_cipher_suite() {
    let meet = |change: fn(&mut HostTerms)| meet(NEW, NEW, Demand::Authentication, change);
    let of = |change| meet(change).unwrap_err().reason;
    assert_eq!(of(|terms| terms.groups = vec![Group::Null]), FailureReason::GROUP_UNUSABLE);
    assert_eq!(of(|terms| terms.hashes = vec![Hash::Sha512]), FailureReason::HASH_UNUSABLE);
    let (psks, _) = meet(|terms| terms.hashes = Hash::ALL.to_vec())
        .expect("a hash of a cipher suite is chosen");
    assert_eq!(psks[0].hash, Hash::Sha256);
}

/// An attacker changes a reply of a host that requests a channel. No change can remove the channel,
/// the host's challenge or its sequence number.
#[test]
fn an_attacker_cannot_remove_the_inputs_of_the_key() {
    let run = |at: usize, value: u8, is_first: bool| {
        let terms = HostTerms { concatenation: NEW, ..host_terms() };
        let mut host = Host::new(terms, &mut numbers(1));
        let mut controller = Controller::new(controller_terms().into()).offering(NEW);
        let mut steps = 0;
        while let step @ (Step::Send(_) | Step::Receive) = host.step() {
            if let Step::Send(mut message) = step {
                if is_first == (steps == 0) && steps < 4 {
                    message[at] = value;
                }
                controller.handle(&message, &mut numbers(2));
                host.handle_sent();
            } else {
                let Some(message) = controller.take_message() else { break };
                host.handle_received(&message, &mut numbers(1));
            }
            steps += 1;
        }
        (controller.failure().map(|failure| failure.reason), controller.take_psks().len())
    };
    // Without a change, both sides succeed.
    assert_eq!(run(0, 0, true), (None, 2));
    assert_eq!(run(6, 0, true), (Some(FailureReason::FAILED), 0), "a changed SC_C is detected");
    assert_eq!(
        run(6, 3, true),
        (Some(FailureReason::CONCATENATION_MISMATCH), 0),
        "a changed SC_C is detected"
    );
    assert_eq!(
        run(8, 0, false),
        (Some(FailureReason::INCORRECT_PAYLOAD), 0),
        "a changed CVALID is detected"
    );
}

/// Each entry has the seed, the hash function, whether both sides prove their identity, SC_C, and
/// the expected hash. With the seed 224, the shared secret starts with 00f83e.
const TRANSCRIPTS: [(u32, u8, bool, u8, &str); 16] = [
    (7, 1, false, 2, "8dc5d4511cc091134b55a87c3281b29512c4c2197a4543ad479f20e89e2f5108"),
    (7, 1, false, 3, "882e7fbc8c2a47a2b9284431a0151e48d15adadd6d65e6ac5421a32b45578809"),
    (7, 1, true, 2, "ca7a96f0bc35be39dd67848ad0df6d123f7d7d858306d9ec182012073030a099"),
    (7, 1, true, 3, "0431ce77ddb51c5d963f50c8d0a3c165b315cb94edc2704b099f89281de44ba5"),
    (7, 2, false, 2, "201d64642d00b72b4da7a663c4178fabc66729ecad488a426b2149f38ae807a8"),
    (7, 2, false, 3, "31f3c754d081ad19128a3f06eda87e38fcbc1581976bd3970f88ea5a8567984e"),
    (7, 2, true, 2, "e3bb556081dde5be3f9bf6f87276e575bf9ed15267ba5e8390c186813c60126d"),
    (7, 2, true, 3, "373d46ba58472570e5aeecb5805df2e59d38bf6753441a2b6283ad781f560c89"),
    (224, 1, false, 2, "6bd5102a5a73722d38ec6142ef9de214fc58c2470ed23f15cc85eb2f314fb9f4"),
    (224, 1, false, 3, "61e060dc8ebea11cf58a8cb87a47d16bdf6531ad171d044c07f4e5a20f8d4903"),
    (224, 1, true, 2, "9f96da4fb7663f162525e75934f450685276b57029e5a9f4cffec19b266fe7ce"),
    (224, 1, true, 3, "b2d3578e8872e7c36e8d664d3f105c04b4d3b14a1bc34a2de198bc2465ee0991"),
    (224, 2, false, 2, "2a1d31738509cc6be27883402257c66d8663f24d8e275f4beed4c5b7715b67cb"),
    (224, 2, false, 3, "4367964a0381208203cf8e3490f9dbe0bd674a05c6d4d8ecc2acb1335d51af02"),
    (224, 2, true, 2, "3ee0523e11c7d1b63c9b384a98d73c6a2b4b7bd4cd5b317172b8e488194dbc66"),
    (224, 2, true, 3, "a23aa53869861a7a086817b97330986f6d18bbeb922c10c86df4ccfc751d52da"),
];
