//! A host and a controller that know each other's secrets, for the other test files in this folder.

pub(crate) mod vectors;

use farblock_random::Random;
use farblock_secure::{
    Agreed, Concatenation, Controller, ControllerTerms, Demand, Failure, Group, Hash, Host,
    HostTerms, Secret, Step,
};

pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.org.example:disks";

/// Returns a source of pseudorandom bytes with this seed.
pub(crate) fn numbers(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = Random::new(seed);
    move |out| random.fill(out)
}

pub(crate) fn secret(seed: u64) -> Secret {
    Secret::generate(32, Some(Hash::Sha256), &mut numbers(seed)).expect("a valid length")
}

pub(crate) fn controller_terms() -> ControllerTerms {
    ControllerTerms {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_secrets: vec![secret(1)],
        controller_secret: Some(secret(2)),
        hashes: Hash::ALL.to_vec(),
        groups: vec![Group::Ffdhe2048],
        demand: Demand::Authentication,
    }
}

pub(crate) fn controller() -> Controller {
    Controller::new(controller_terms().into())
}

pub(crate) fn host_terms() -> HostTerms {
    HostTerms {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host_secret: secret(1),
        controller_secrets: vec![secret(2)],
        hashes: vec![Hash::Sha256, Hash::Sha384],
        groups: vec![Group::Ffdhe2048],
        concatenation: Concatenation::NONE,
    }
}

pub(crate) fn null_host_terms() -> HostTerms {
    HostTerms { groups: vec![Group::Null], ..host_terms() }
}

/// Runs a whole authentication.
pub(crate) fn answer(host: &mut Host, controller: &mut Controller) -> Result<Agreed, Failure> {
    answer_from(1, host, controller)
}

/// Runs a whole authentication with random numbers from a seed.
pub(crate) fn answer_from(
    seed: u64,
    host: &mut Host,
    controller: &mut Controller,
) -> Result<Agreed, Failure> {
    loop {
        match host.step() {
            Step::Send(message) => {
                controller.handle(&message, &mut numbers(seed + 1));
                host.handle_sent();
            }
            Step::Receive => {
                let message = controller.take_message().expect("an answer to every message");
                host.handle_received(&message, &mut numbers(seed));
            }
            Step::Done(agreed) => return Ok(agreed),
            Step::Failed(failure) => return Err(failure),
        }
    }
}

/// Messages that several test files use.
pub(crate) struct Pair;

impl Pair {
    /// Returns a valid AUTH_Negotiate.
    pub(crate) fn negotiation() -> Vec<u8> {
        let Step::Send(message) = Host::new(host_terms(), &mut numbers(1)).step() else {
            panic!("a message to send")
        };
        message
    }
}
