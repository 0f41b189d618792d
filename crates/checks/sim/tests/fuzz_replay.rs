//! Runs the functions of the fuzz targets on random input. Unlike fuzzing, this works with every
//! Rust toolchain.

use farblock_sim::fuzz;

#[test]
fn the_framer_survives_random_inputs() {
    fuzz::replay(fuzz::framer, 0xf7a3e5, 20_000);
}

#[test]
fn the_session_survives_random_inputs() {
    fuzz::replay(fuzz::session, 0x5e5510, 20_000);
}

#[test]
fn private_data_and_data_pointers_of_rdma_match_the_oracle() {
    fuzz::replay(fuzz::rdma, 0x4d_a000, 100_000);
    // A valid request, its answer, a rejection and a command, with each byte changed.
    let mut request = [0; 40];
    request[..8].copy_from_slice(&[0, 16, 64, 1, 16, 0, 16, 16]);
    request[12..16].copy_from_slice(&[32, 0, 31, 0]);
    let answer: Vec<u8> = [1, 8].into_iter().chain([0, 0, 32]).chain([0; 29]).collect();
    let mut command = [0; 65];
    (command[0], command[2], command[40]) = (3, 0x40, 0x40);
    // A list of two descriptors.
    let mut list = [0; 1 + 3 * 16];
    (list[0], list[9], list[16]) = (4, 32, 0x31);
    (list[26], list[32], list[42], list[48]) = (2, 0x40, 2, 0x4f);
    for valid in [&request[..], &answer, &[2, 0, 0, 6, 0], &command, &list] {
        fuzz::rdma(valid);
        for at in 1..valid.len() {
            for value in 0..=255 {
                let mut changed = valid.to_vec();
                changed[at] = value;
                fuzz::rdma(&changed);
            }
            fuzz::rdma(&valid[..at]);
        }
    }
}

#[test]
fn authentication_survives_random_inputs() {
    // Run both ends without an attacker, with equal and with different secrets.
    (0..4).for_each(|choice| fuzz::authentication(&[choice]));
    fuzz::replay(fuzz::authentication, 0xa07, 5_000);
}

#[test]
fn concatenation_survives_random_inputs() {
    // Run both ends without an attacker, for every configuration of the hosts.
    (0..=255).for_each(|choice| fuzz::concatenation(&[choice, 0, 0]));
    // Another host starts a new authentication after each message of the first host.
    for cut in 0..5 {
        for second in [0, 1, 0b1101_1000, 0b1101_1001, 0b0001_1000, 0b0001_1001] {
            fuzz::concatenation(&[0b1101_1000, second, cut << 1 | 1]);
            fuzz::concatenation(&[0b1101_1100, second, cut << 1 | 1]);
        }
    }
    // The attacker changes one byte in the header of one message.
    for place in 0..5 * 12 * 2 {
        let (message, at, value) = (place / 24, place / 2 % 12 + 4, place % 2);
        let mut input = vec![0b1101_1000, 0, 0];
        input.resize(3 + message * 5, 0);
        input.extend([3, 5, at as u8, value as u8, 0]);
        fuzz::concatenation(&input);
    }
    fuzz::replay(fuzz::concatenation, 0xc0ca7, 200);
}

#[test]
#[cfg(unix)]
fn tls_records_survive_random_inputs() {
    // Run both ends without an attacker, for every first byte of the input. Each end sends all data
    // at once.
    (0..=255).for_each(|choice| fuzz::records(&[choice, 0, 255, 255, 5, 255, 255]));
    // Send messages that a peer may send (tickets, updates), and messages that it must not send.
    for (kind, at) in (0..=255).flat_map(|kind| [2, 3, 4].map(|at| (kind, at))) {
        for choice in [0, 2] {
            let content = [kind, 0, 0, 1, 1, 0, 0, 0];
            let said = [&[choice, 2, 8, at], &content[..], &[5, 255, 255]].concat();
            fuzz::records(&said);
        }
    }
    fuzz::replay(fuzz::records, 0x7ec0, 300);
}

#[test]
fn key_parsers_survive_random_inputs() {
    fuzz::keys(b"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    fuzz::keys(b"NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    fuzz::replay(fuzz::keys, 0x4e75, 2_000);
}
