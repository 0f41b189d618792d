//! A conversation with the random numbers and secrets of `vectors.py`. The expected output comes
//! from that implementation.

use farblock_secure::{Agreed, Controller, Host, Progress, Secret, Step};
use sha2::{Digest, Sha256};

const HOST_SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER_SECRET: &str = "\
    DHHC-1:03:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTlJWWl5\
    iZmpucnZ6foKGio8FPdnY=:";

pub(crate) fn host_secret() -> Secret {
    Secret::parse(HOST_SECRET).expect("a secret")
}

pub(crate) fn controller_secret() -> Secret {
    Secret::parse(CONTROLLER_SECRET).expect("a secret")
}

/// Returns a source of the same pseudorandom bytes as in `vectors.py`.
pub(crate) fn random(mut state: u32) -> impl FnMut(&mut [u8]) {
    move |out| {
        out.fill_with(|| {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
            (state >> 16) as u8
        });
    }
}

/// Authenticates a host. Returns the hash of the messages Challenge, Reply and Success1, and the
/// agreed parameters.
pub(crate) fn converse(
    host: &mut Host,
    mut host_entropy: impl FnMut(&mut [u8]),
    controller: &mut Controller,
    mut controller_entropy: impl FnMut(&mut [u8]),
) -> (Sha256, Agreed) {
    let (mut said, mut steps) = (Sha256::new(), 0);
    let agreed = loop {
        match host.step() {
            Step::Send(message) => {
                assert!(host.take_psks().is_empty() && controller.take_psks().is_empty());
                if steps == 2 {
                    said.update(&message);
                }
                controller.handle(&message, &mut controller_entropy);
                host.handle_sent();
            }
            Step::Receive => {
                let message = controller.take_message().expect("an answer");
                said.update(&message);
                host.handle_received(&message, &mut host_entropy);
            }
            Step::Done(agreed) => break agreed,
            Step::Failed(failure) => panic!("{failure}"),
        }
        steps += 1;
    };
    assert_eq!(controller.progress(), Progress::Done);
    (said, agreed)
}

/// Returns a hash in the format of `vectors.py`.
pub(crate) fn hexadecimal(said: Sha256) -> String {
    said.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
