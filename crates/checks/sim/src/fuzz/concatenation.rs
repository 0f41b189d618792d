//! TLS concatenation: authentication messages in transit, and the TLS key that both ends derive.

use super::secrets::{
    HOST, MOST_MESSAGES, SUBSYSTEM, change, controller_terms, exchange, host_terms, numbers, secret,
};
use farblock_secure::{
    Concatenation, Controller, ControllerTerms, Demand, Group, Hash, Host, HostTerms, Progress,
    Step, TlsPsk,
};
use std::sync::Arc;

const NEW: Concatenation = Concatenation::NEW_TLS_PSK;

/// The number of input bytes that determine how the attacker changes one message (its fate).
const FATE_BYTES: usize = 5;

/// The secrets and requests of a host and its controller, encoded in a byte of the input.
#[derive(Clone, Copy)]
struct Choice(u8);

impl Choice {
    fn knows_host(self) -> bool {
        self.0 & 1 == 0
    }

    fn knows_controller(self) -> bool {
        self.0 & 2 == 0
    }

    fn is_mutual(self) -> bool {
        self.0 & 4 == 0
    }

    /// The host's request. For most values, the host requests the concatenation that the target
    /// offers.
    fn asked(self) -> Concatenation {
        match self.0 >> 3 & 7 {
            0 => Concatenation::NONE,
            1 => Concatenation::REPLACE_TLS_PSK,
            2 => Concatenation(1),
            _ => NEW,
        }
    }

    fn demand(self) -> Demand {
        match self.0 >> 6 {
            0 => Demand::SecureChannel,
            1 => Demand::Mutual,
            _ => Demand::Authentication,
        }
    }

    fn host(self) -> HostTerms {
        let own = secret(if self.knows_host() { 1 } else { 11 });
        let mut terms = host_terms(own);
        terms.hashes = vec![Hash::Sha256, Hash::Sha384];
        terms.groups = vec![Group::Ffdhe2048];
        terms.concatenation = self.asked();
        if !self.is_mutual() {
            terms.controller_secrets.clear();
        }
        terms
    }

    fn controller(self) -> ControllerTerms {
        let own = secret(if self.knows_controller() { 2 } else { 12 });
        ControllerTerms {
            groups: vec![Group::Ffdhe2048],
            demand: self.demand(),
            ..controller_terms(own)
        }
    }
}

/// A host requests TLS concatenation, and a controller offers it. An attacker between them changes,
/// cuts, repeats and forges messages. Then another host starts a new authentication on the same
/// queue, even if the first one has stopped in the middle. The first two bytes determine the
/// secrets and requests of these hosts. The third byte determines after which message the first
/// host disconnects, and whether the other host follows.
///
/// Panics if one end panics, or if a peer with a wrong secret obtains a key. Also panics if the
/// ends skip a requested secure channel, or derive different keys from the same secrets without an
/// attack.
pub fn concatenation(data: &[u8]) {
    let Some((&[first, second, cut], data)) = data.split_first_chunk() else { return };
    let (first, second) = (Choice(first), Choice(second));
    let mut network = Network { fates: data.chunks(FATE_BYTES), last: Vec::new(), touched: 0 };
    let terms = Arc::new(first.controller());
    let mut controller = Controller::new(terms).offering(NEW);
    let mut host = Host::new(first.host(), &mut numbers(3));
    let most = if cut & 1 == 0 { MOST_MESSAGES } else { usize::from(cut >> 1) % 5 };
    exchange(&mut host, &mut controller, most, |message| network.carry(message));
    let psks = check(first, &mut host, &mut controller, network.touched);
    if cut & 1 == 0 {
        return;
    }
    // The controller still has its state from the first exchange.
    let mut other = Host::new(second.host(), &mut numbers(5));
    exchange(&mut other, &mut controller, MOST_MESSAGES, |message| network.carry(message));
    let is_done = controller.progress() == Progress::Done;
    let later = controller.take_psks();
    if is_done {
        assert!(first.knows_host() || second.knows_host(), "a host with a wrong secret succeeds");
        let has_key = !psks.is_empty() || !later.is_empty();
        assert!(
            has_key || !controller.has_concatenated(),
            "the controller has a secure channel without a key"
        );
        assert!(
            later.is_empty() || controller.has_concatenated(),
            "the controller has a key without a channel"
        );
    }
    assert!(is_done || later.is_empty(), "the controller has a key before authentication ends");
}

/// The attacker between the two ends.
struct Network<'a> {
    fates: std::slice::Chunks<'a, u8>,
    last: Vec<u8>,
    /// The number of messages that the attacker has changed.
    touched: usize,
}

impl Network<'_> {
    /// Delivers a message. The attacker changes it if the first byte of its fate says so: a quarter
    /// of the values do, so that most inputs reach the later messages.
    fn carry(&mut self, message: &mut Vec<u8>) {
        let before = message.clone();
        if let Some((&is_met, fate)) = self.fates.next().and_then(<[u8]>::split_first)
            && is_met & 3 == 3
        {
            change(message, &self.last, fate);
        }
        self.touched += usize::from(*message != before);
        self.last = before;
    }
}

/// Checks both ends after the exchange with the first host.
fn check(
    choice: Choice,
    host: &mut Host,
    controller: &mut Controller,
    touched: usize,
) -> Vec<TlsPsk> {
    let is_host_done = matches!(host.step(), Step::Done(_));
    let is_controller_done = controller.progress() == Progress::Done;
    let (hosts, controllers) = (host.take_psks(), controller.take_psks());
    let asks = choice.asked() != Concatenation::NONE;
    assert_eq!(!hosts.is_empty(), is_host_done && asks, "unexpected keys of the host");
    let has_channel = is_controller_done && controller.has_concatenated();
    assert_eq!(!controllers.is_empty(), has_channel, "unexpected keys of the controller");
    if is_host_done && choice.is_mutual() {
        assert!(choice.knows_controller(), "the host accepts an unknown controller");
    }
    if is_controller_done {
        assert!(choice.knows_host(), "the controller accepts an unknown host");
        assert_eq!(controller.has_concatenated(), asks, "the host's request is ignored");
        let has_to = choice.demand() == Demand::SecureChannel;
        assert!(asks || !has_to, "the host continues in plain text");
        assert!(
            choice.is_mutual() || choice.demand() != Demand::Mutual,
            "mutual authentication is missing"
        );
    }
    let names = format!("{HOST} {SUBSYSTEM}");
    for psk in hosts.iter().chain(&controllers) {
        assert!(psk.is_generated() && psk.identity.contains(&names), "{}", psk.identity);
    }
    if is_host_done && is_controller_done && (touched == 0 || choice.is_mutual()) {
        assert!(hosts == controllers, "both ends are authenticated, with different keys");
    }
    let is_allowed = choice.knows_host()
        && (choice.knows_controller() || !choice.is_mutual())
        && (choice.is_mutual() || choice.demand() != Demand::Mutual)
        && (choice.asked() == NEW || !asks && choice.demand() != Demand::SecureChannel);
    if touched == 0 && is_controller_done | is_host_done {
        assert!(is_allowed, "an end finishes although a policy forbids it");
    }
    if touched == 0 && matches!(host.step(), Step::Failed(_)) {
        assert!(!is_allowed, "the authentication fails for no reason");
    }
    controllers
}
