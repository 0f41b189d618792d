//! Tests that each invalid message of a peer causes the failure reason that the specification
//! names.

#[allow(dead_code, reason = "the other files use the rest of it")]
mod pair;

use farblock_secure::{Controller, Failure, Group, Hash, Host, Party, Progress, Step};
use farblock_wire::auth::FailureReason;
use pair::{Pair, answer, controller, host_terms, numbers, secret};

/// Passes an invalid message to the controller. Returns the failure reason that the controller
/// sends to the host.
fn refusal(controller: &mut Controller, message: &[u8]) -> FailureReason {
    controller.handle(message, &mut numbers(3));
    assert_eq!(controller.progress(), Progress::Failed, "{message:02x?}");
    let failure = controller.failure().expect("a failure").clone();
    assert_eq!(failure.by, Party::Us);
    let told = controller.take_message().expect("a failure message");
    assert_eq!((told[0], told[1], told[6], told[7]), (0, 0xf1, 1, failure.reason.0));
    // The controller stays failed.
    controller.handle(&Pair::negotiation(), &mut numbers(3));
    assert_eq!((controller.progress(), controller.take_message()), (Progress::Failed, None));
    failure.reason
}

/// Returns a controller that has sent its challenge, and the host's valid reply to the challenge.
fn challenged() -> (Controller, Vec<u8>) {
    let mut controller = controller();
    let mut host = Host::new(host_terms(), &mut numbers(1));
    let Step::Send(negotiation) = host.step() else { panic!("the host starts") };
    controller.handle(&negotiation, &mut numbers(2));
    host.handle_sent();
    host.handle_received(&controller.take_message().unwrap(), &mut numbers(1));
    let Step::Send(reply) = host.step() else { panic!("a reply") };
    (controller, reply)
}

#[test]
fn invalid_negotiations_are_refused() {
    let good = Pair::negotiation();
    let with = |at: usize, value: u8| {
        let mut message = good.clone();
        message[at] = value;
        message
    };
    use FailureReason as R;
    for (what, message, expected) in [
        ("nothing", Vec::new(), R::INCORRECT_PAYLOAD),
        ("a head", good[..7].to_vec(), R::INCORRECT_PAYLOAD),
        ("half a descriptor", good[..40].to_vec(), R::INCORRECT_PAYLOAD),
        ("more descriptors than there are", with(7, 2), R::INCORRECT_PAYLOAD),
        ("no descriptor", with(7, 0), R::PROTOCOL_UNUSABLE),
        ("another protocol", with(8, 2), R::PROTOCOL_UNUSABLE),
        ("a secure channel", with(6, 1), R::CONCATENATION_MISMATCH),
        ("too many hashes", with(10, 31), R::INCORRECT_PAYLOAD),
        ("too many groups", with(11, 255), R::INCORRECT_PAYLOAD),
        ("no hash", with(10, 0), R::HASH_UNUSABLE),
        ("no group", with(11, 0), R::GROUP_UNUSABLE),
        ("an unknown type", with(0, 2), R::INCORRECT_MESSAGE),
        ("an unknown message", with(1, 9), R::INCORRECT_MESSAGE),
        ("a message of controllers", with(1, 0xf1), R::INCORRECT_MESSAGE),
    ] {
        assert_eq!(refusal(&mut controller(), &message), expected, "{what}");
    }
}

#[test]
fn invalid_replies_are_refused() {
    let (_, good) = challenged();
    use FailureReason as R;
    for (what, at, value, expected) in [
        ("another transaction", 4, good[4] ^ 1, R::INCORRECT_PAYLOAD),
        ("a short hash", 6, 31, R::INCORRECT_PAYLOAD),
        ("a long hash", 6, 255, R::INCORRECT_PAYLOAD),
        ("odd CVALID", 8, 2, R::INCORRECT_PAYLOAD),
        ("a value longer than the message", 11, 0xff, R::INCORRECT_PAYLOAD),
        ("a shorter value", 11, 0, R::INCORRECT_PAYLOAD),
        ("a wrong proof", 16, good[16] ^ 0x80, R::FAILED),
        ("a wrong value", good.len() - 1, good[good.len() - 1] ^ 1, R::FAILED),
        ("a message out of turn", 1, 4, R::INCORRECT_MESSAGE),
    ] {
        let (mut controller, mut reply) = challenged();
        assert_eq!(reply, good, "the host's reply differs between attempts");
        reply[at] = value;
        assert_eq!(refusal(&mut controller, &reply), expected, "{what}");
    }
    for length in 0..good.len() {
        let (mut controller, reply) = challenged();
        assert_eq!(refusal(&mut controller, &reply[..length]), R::INCORRECT_PAYLOAD, "{length}");
    }
}

#[test]
fn a_sequence_number_of_zero_is_refused_without_concatenation() {
    let (mut controller, mut reply) = challenged();
    reply[12..16].fill(0);
    assert_eq!(refusal(&mut controller, &reply), FailureReason::INCORRECT_PAYLOAD);
}

#[test]
fn replayed_replies_are_refused() {
    // This reply belongs to the challenge of another connection.
    let (_, reply) = challenged();
    let mut other = controller();
    other.handle(&Pair::negotiation(), &mut numbers(77));
    other.take_message().unwrap();
    assert_eq!(refusal(&mut other, &reply), FailureReason::FAILED);
    let (mut same, reply) = challenged();
    same.handle(&reply, &mut numbers(5));
    same.take_message().unwrap();
    assert_eq!(refusal(&mut same, &reply), FailureReason::INCORRECT_MESSAGE);
}

#[test]
fn messages_out_of_order_are_refused() {
    let (_, reply) = challenged();
    // This reply answers a challenge that the controller has made but the host has not received.
    let mut early = controller();
    early.handle(&Pair::negotiation(), &mut numbers(2));
    assert_eq!(refusal(&mut early, &reply), FailureReason::INCORRECT_MESSAGE);
    let success2 = [&[1, 4, 0, 0][..], &reply[4..6], &[0; 10]].concat();
    let (mut skipped, _) = challenged();
    assert_eq!(refusal(&mut skipped, &success2), FailureReason::INCORRECT_MESSAGE);
}

#[test]
fn a_host_may_restart_and_repeat_the_authentication() {
    let (mut controller, _) = challenged();
    for seed in 10..13 {
        let mut host = Host::new(host_terms(), &mut numbers(seed));
        assert!(answer(&mut host, &mut controller).is_ok());
        assert_eq!(controller.progress(), Progress::Done);
    }
}

#[test]
fn a_failure_message_of_the_host_ends_the_authentication() {
    let (mut controller, reply) = challenged();
    let failure2 = [&[0, 0xf0, 0, 0][..], &reply[4..6], &[1, 1]].concat();
    controller.handle(&failure2, &mut numbers(1));
    assert_eq!((controller.progress(), controller.take_message()), (Progress::Failed, None));
    assert_eq!(controller.failure().unwrap().by, Party::Peer);
}

/// Returns the failure at a host if `change` changes the controller's message number `turn`.
fn host_fails(turn: usize, change: impl Fn(&mut Vec<u8>)) -> Failure {
    let mut controller = controller();
    let mut host = Host::new(host_terms(), &mut numbers(1));
    let mut received = 0;
    loop {
        match host.step() {
            Step::Send(message) => {
                controller.handle(&message, &mut numbers(2));
                host.handle_sent();
            }
            Step::Receive => {
                let mut message = controller.take_message().unwrap();
                if received == turn {
                    change(&mut message);
                }
                received += 1;
                host.handle_received(&message, &mut numbers(1));
            }
            Step::Done(agreed) => panic!("the host accepted the controller: {agreed:?}"),
            Step::Failed(failure) => {
                let told = failure.by == Party::Us;
                assert_eq!(controller.progress() == Progress::Failed, told, "told");
                return failure;
            }
        }
    }
}

#[test]
fn a_host_refuses_invalid_challenges() {
    use FailureReason as R;
    for (what, at, value, expected) in [
        ("another hash than was offered", 8, 9, R::HASH_UNUSABLE),
        ("a hash of another length", 8, Hash::Sha512.id(), R::HASH_UNUSABLE),
        ("an unknown group", 9, 99, R::GROUP_UNUSABLE),
        ("a downgrade to no group", 9, Group::Null.id(), R::GROUP_UNUSABLE),
        ("a value of another group", 9, Group::Ffdhe3072.id(), R::GROUP_UNUSABLE),
        ("a value longer than the message", 11, 0xff, R::INCORRECT_PAYLOAD),
        ("another transaction", 4, 0x99, R::INCORRECT_MESSAGE),
        ("a success at once", 1, 3, R::INCORRECT_PAYLOAD),
        ("a message of hosts", 1, 2, R::INCORRECT_PAYLOAD),
    ] {
        let failure = host_fails(0, |message| message[at] = value);
        let out_of_turn = failure.reason == R::INCORRECT_MESSAGE;
        assert!(failure.reason == expected || (at == 1 && out_of_turn), "{what}: {failure:?}");
    }
    let group = host_fails(0, |message| message[9] = Group::Null.id()).to_string();
    assert!(group.contains("chose the Diffie-Hellman group null; this host offered"), "{group}");
    let short = host_fails(0, |message| message.truncate(60));
    assert_eq!(short.reason, R::INCORRECT_PAYLOAD);
}

#[test]
fn a_host_refuses_a_controller_without_a_valid_proof() {
    use FailureReason as R;
    let none = host_fails(1, |message| message[8] = 0);
    assert_eq!(none.reason, R::FAILED, "{none}");
    let wrong = host_fails(1, |message| message[20] ^= 1);
    assert_eq!(wrong.reason, R::FAILED, "{wrong}");
    let short = host_fails(1, |message| message[6] = 16);
    assert_eq!(short.reason, R::INCORRECT_PAYLOAD, "{short}");
    // A side rejects its own proof if the peer sends it back, since the proof contains the role.
    let mut terms = host_terms();
    terms.controller_secrets = vec![secret(9)];
    let mut other = Host::new(terms, &mut numbers(1));
    let failure = answer(&mut other, &mut controller()).unwrap_err();
    assert_eq!((failure.reason, failure.by), (R::FAILED, Party::Us));
}

#[test]
fn a_wrong_secret_or_name_is_refused_with_advice() {
    let mut wrong_secret = host_terms();
    wrong_secret.host_secret = secret(3);
    let mut wrong_name = host_terms();
    wrong_name.host_nqn.push('x');
    for terms in [wrong_secret, wrong_name] {
        let mut controller = controller();
        let failure = answer(&mut Host::new(terms, &mut numbers(1)), &mut controller).unwrap_err();
        assert_eq!((failure.reason, failure.by), (FailureReason::FAILED, Party::Peer));
        assert!(failure.sentence.contains("compare the secrets"), "{failure}");
        assert!(controller.failure().unwrap().sentence.contains("does not match any secret"));
    }
}

#[test]
fn the_hash_and_group_that_both_accept_are_used() {
    let mut terms = host_terms();
    terms.hashes = vec![Hash::Sha512, Hash::Sha256];
    let agreed = answer(&mut Host::new(terms, &mut numbers(1)), &mut controller()).unwrap();
    assert_eq!((agreed.hash, agreed.group), (Hash::Sha256, Group::Ffdhe2048));
    let mut terms = host_terms();
    terms.groups = vec![Group::Null];
    let failure = answer(&mut Host::new(terms, &mut numbers(1)), &mut controller()).unwrap_err();
    assert_eq!(failure.reason, FailureReason::GROUP_UNUSABLE);
    assert!(failure.sentence.contains("null"), "{failure}");
}

#[test]
fn either_of_two_secrets_is_accepted() {
    let mut terms = pair::controller_terms();
    terms.host_secrets = vec![secret(8), secret(1)];
    let mut controller = Controller::new(terms.into());
    assert!(answer(&mut Host::new(host_terms(), &mut numbers(1)), &mut controller).is_ok());
}

#[test]
fn arbitrary_messages_do_not_panic() {
    let mut random = numbers(99);
    let mut draw = |count: usize| {
        let mut bytes = vec![0; count];
        random(&mut bytes);
        bytes
    };
    for _ in 0..2000 {
        let length = usize::from(draw(1)[0]);
        let mut message = draw(length);
        // Half of the messages start like a valid one.
        if length > 8 && message[2] & 1 == 0 {
            message[0] &= 1;
            message[1] &= 7;
        }
        let mut controller = controller();
        controller.handle(&message, &mut numbers(1));
        let mut host = Host::new(pair::null_host_terms(), &mut numbers(1));
        host.handle_sent();
        host.handle_received(&message, &mut numbers(1));
    }
}
