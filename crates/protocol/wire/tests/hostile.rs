//! Tests with input that no correct peer sends: the parsers do not panic, and refuse invalid names.

use farblock_random::Random;
use farblock_wire::fabrics::{ConnectCommand, ConnectData};
use farblock_wire::identify::{
    ControllerList, IdentifyController, IdentifyNamespace, IdentifyParameters,
    NamespaceIdDescriptor, NamespaceList, parse_ascii,
};
use farblock_wire::log::{DiscoveryLogEntry, LogPageParameters, parse_text};
use farblock_wire::nqn::{
    DISCOVERY_NQN, NQN_MAX_BYTES, NqnError, nqn_field, parse_field, parse_field_text, validate,
};
use farblock_wire::nvm::{DsmCommand, RwCommand};
use farblock_wire::opcode::DataDirection;
use farblock_wire::tcp::{CommonHeader, DigestFlags, IcReq, PduShape, TermReq};
use farblock_wire::{Cqe, Sqe};

#[test]
fn valid_nqns_are_accepted() {
    for name in [
        DISCOVERY_NQN,
        "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349",
        "nqn.2016-06.io.spdk:cnode1",
        "nqn.2014-08.com.vmware:nvme:host",
        "nqn.2026-12.example.caf\u{e9}",
    ] {
        assert_eq!(validate(name), Ok(()), "{name}");
        assert_eq!(parse_field(&nqn_field(name)), Ok(name));
    }
}

#[test]
fn invalid_nqns_are_refused() {
    let long = format!("nqn.2014-08.x:{}", "y".repeat(NQN_MAX_BYTES - 13));
    assert_eq!(long.len(), NQN_MAX_BYTES + 1);
    assert_eq!(validate(&long[..NQN_MAX_BYTES]), Ok(()));
    for (name, error) in [
        ("", NqnError::Empty),
        (long.as_str(), NqnError::TooLong),
        ("nqn.2014-08.x\n", NqnError::ControlCharacter),
        ("nqn.2014-08.x\u{1b}[2J", NqnError::ControlCharacter),
        ("iqn.2014-08.x", NqnError::NoPrefix),
        ("NQN.2014-08.x", NqnError::NoPrefix),
        ("nqn.", NqnError::BadDate),
        ("nqn.2014-8.x", NqnError::BadDate),
        ("nqn.2014-00.x", NqnError::BadDate),
        ("nqn.2014-13.x", NqnError::BadDate),
        ("nqn.2014-08.", NqnError::BadDate),
        ("nqn.2014-08.:x", NqnError::BadDate),
        ("nqn.2014-08.org.nvmexpress:uuid:", NqnError::BadUuid),
        ("nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de34g", NqnError::BadUuid),
        ("nqn.2014-08.org.nvmexpress:uuid:0f01fb42x9f7f-4856-b0b3-51e60b8de349", NqnError::BadUuid),
    ] {
        assert_eq!(validate(name), Err(error), "{name:?}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn invalid_nqn_fields_are_refused() {
    assert_eq!(parse_field(&[b'a'; 256]), Err(NqnError::TooLong));
    assert_eq!(parse_field(&[0; 256]), Err(NqnError::Empty));
    let mut field = [0xff; 256];
    field[255] = 0;
    assert_eq!(parse_field(&field), Err(NqnError::NotUtf8));
    // The parser ignores bytes after the NUL.
    let mut field = nqn_field("testnqn");
    field[8..].fill(0xff);
    assert_eq!(parse_field_text(&field), Ok("testnqn"));
    assert_eq!(parse_field(&field), Err(NqnError::NoPrefix));
    // A name of 224 bytes and a NUL.
    let mut field = [b'a'; 256];
    field[224] = 0;
    assert_eq!(parse_field_text(&field), Err(NqnError::TooLong));
}

#[test]
fn parsing_any_bytes_never_panics() {
    let mut random = Random::new(1);
    let mut bytes = vec![0; 4096];
    for round in 0..2000_usize {
        random.fill(&mut bytes);
        if round % 3 == 0 {
            // Make bytes mostly printable, so that the text parsers read past the first byte.
            bytes.iter_mut().for_each(|byte| *byte &= 0x7f);
        }
        let cut = &bytes[..round * 2];
        let _ = (CommonHeader::parse(cut), IcReq::parse(cut), TermReq::parse(cut));
        let _ = (ConnectData::parse(cut), Cqe::parse(cut).map(|cqe| cqe.status().to_string()));

        let sqe = Sqe::parse(&bytes).unwrap();
        let _ = (DataDirection::of_command(&sqe), ConnectCommand::from_sqe(&sqe));
        let _ = (IdentifyParameters::parse(&sqe), LogPageParameters::parse(&sqe).length_bytes());
        let _ = (RwCommand::parse(&sqe).end_lba(), DsmCommand::parse(&sqe).data_bytes());
        let _ = PduShape::new(bytes[0], sqe.cdw10.get(), DigestFlags(bytes[1]), bytes[2]);

        let connect = ConnectData::parse(&bytes).unwrap();
        let _ = (connect.host_nqn(), connect.subsystem_nqn());
        let entry = DiscoveryLogEntry::parse(&bytes).unwrap();
        let _ = (entry.address(), entry.service(), entry.subsystem_nqn());
        let controller = IdentifyController::parse(&bytes).unwrap();
        let _ = (controller.max_transfer_bytes(4096), controller.in_capsule_data_bytes());
        let _ = IdentifyNamespace::parse(&bytes).unwrap().format().block_bytes();
        let _ = (parse_ascii(&bytes), parse_text(&bytes));
        let _ = NamespaceIdDescriptor::iter(&bytes).count();
        let _ = ControllerList::parse(&bytes).unwrap().iter().count();
        let _ = NamespaceList::parse(&bytes).unwrap().iter().count();
    }
}
