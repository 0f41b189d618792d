//! Access control: authentication messages, keys in text form, and TLS ClientHello messages.

use farblock_secure::{
    Concatenation, Controller, ControllerTerms, Demand, Group, Hash, Host, HostTerms, Progress,
    Secret, Step, TlsKey,
};
use farblock_tls::ServerKeys;
use std::sync::Arc;

pub(super) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.org.example:disks";
/// The maximum number of messages. Two successful exchanges have ten messages.
pub(super) const MOST_MESSAGES: usize = 16;
/// The number of input bytes that determine how the attacker changes one message (its fate).
const FATE_BYTES: usize = 4;

/// A host and a controller authenticate. An attacker between them changes, cuts, repeats and forges
/// messages. The first byte determines whether host and controller have the same secrets.
///
/// # Panics
/// Panics if one end panics or admits a peer with another secret, or if two ends with the same
/// secrets fail without an attack.
pub fn authentication(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let (knows_host, knows_controller) = (choice & 1 == 0, choice & 2 == 0);
    let secret = |is_known: bool, seed: u8| secret(if is_known { seed } else { seed + 10 });
    let mut host = Host::new(host_terms(secret(knows_host, 1)), &mut numbers(3));
    let terms = controller_terms(secret(knows_controller, 2));
    let mut controller = Controller::new(Arc::new(terms));
    let mut fates = data.chunks(FATE_BYTES);
    let (mut is_touched, mut last) = (false, Vec::new());
    exchange(&mut host, &mut controller, MOST_MESSAGES, |message| {
        let before = message.clone();
        change(message, &last, fates.next().unwrap_or_default());
        is_touched |= *message != before;
        last = before;
    });
    match host.step() {
        Step::Done(_) => {
            assert!(knows_controller, "the host accepts an unknown controller");
        }
        Step::Failed(_) => {
            assert!(
                is_touched || !knows_host || !knows_controller,
                "authentication fails for no reason"
            );
        }
        Step::Send(_) | Step::Receive => {}
    }
    if controller.progress() == Progress::Done {
        assert!(knows_host, "the controller accepts an unknown host");
    }
}

/// Exchanges at most `most` messages. `carry` may change each message.
pub(super) fn exchange(
    host: &mut Host,
    controller: &mut Controller,
    most: usize,
    mut carry: impl FnMut(&mut Vec<u8>),
) {
    for _ in 0..most {
        match host.step() {
            Step::Send(mut message) => {
                carry(&mut message);
                controller.handle(&message, &mut numbers(4));
                host.handle_sent();
            }
            Step::Receive => {
                let mut message = controller.take_message().unwrap_or_default();
                carry(&mut message);
                host.handle_received(&message, &mut numbers(3));
            }
            Step::Done(_) | Step::Failed(_) => break,
        }
    }
}

/// Changes a message. The fate contains the kind of change, its position, and two parameter bytes.
pub(super) fn change(message: &mut Vec<u8>, last: &[u8], fate: &[u8]) {
    let &[what, at, one, two] = fate else { return };
    let at = usize::from(at);
    match what % 8 {
        1 => message.truncate(at),
        2 => message.extend(std::iter::repeat_n(one, at)),
        3 => *message = last.to_vec(),
        4 => *message = vec![one; at],
        5 => {
            if let Some(byte) = message.get_mut(at) {
                *byte = one;
            }
        }
        6 => {
            if let Some([first, second]) = message.get_mut(at..at + 2) {
                (*first, *second) = (one, two);
            }
        }
        _ => {}
    }
}

/// Parses texts of keys, and the first TLS message of a client with its identities.
///
/// # Panics
/// Panics if a parsed key, formatted again, differs from its text, or if any code panics.
pub fn keys(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        if let Ok(secret) = Secret::parse(text) {
            assert_eq!(secret.text().as_str(), text);
        }
        if let Ok(key) = TlsKey::parse(text) {
            assert_eq!(key.text().as_str(), text);
        }
    }
    let key = TlsKey::generate(Hash::Sha256, &mut numbers(5)).expect("a supported suite");
    let mut known = ServerKeys::default();
    known.set(HOST, SUBSYSTEM, std::slice::from_ref(&key));
    // Look up the identities in the input, and then the right identity with one changed byte.
    let found = farblock_tls::look_at(data, &known);
    assert!(found <= data.len());
    let good = key.psks(HOST, SUBSYSTEM).swap_remove(0).identity.into_bytes();
    let (at, with) = (data.first().copied().unwrap_or(0), data.get(1).copied().unwrap_or(0));
    let mut identity = good.clone();
    let place = usize::from(at) % identity.len();
    identity[place] = with;
    let mut list = (identity.len() as u16).to_be_bytes().to_vec();
    list.extend_from_slice(&identity);
    list.extend_from_slice(&[0; 4]);
    let mut extension = (list.len() as u16).to_be_bytes().to_vec();
    extension.append(&mut list);
    let is_known = farblock_tls::look_at(&extension, &known) > 0;
    assert_eq!(is_known, identity == good, "{}", String::from_utf8_lossy(&identity));
}

pub(super) fn secret(seed: u8) -> Secret {
    Secret::generate(32, Some(Hash::Sha256), &mut numbers(seed.into())).expect("a length")
}

pub(super) fn host_terms(host_secret: Secret) -> HostTerms {
    HostTerms {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_secret,
        controller_secrets: vec![secret(2)],
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
        concatenation: Concatenation::NONE,
    }
}

pub(super) fn controller_terms(own: Secret) -> ControllerTerms {
    ControllerTerms {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_secrets: vec![secret(1)],
        controller_secret: Some(own),
        hashes: Hash::ALL.to_vec(),
        groups: vec![Group::Null],
        demand: Demand::Authentication,
    }
}

/// Pseudorandom bytes from a seed.
pub(super) fn numbers(mut state: u32) -> impl FnMut(&mut [u8]) {
    move |out| {
        out.fill_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
    }
}
