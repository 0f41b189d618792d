//! Tests connections to a target: success, and the error for each refusal.

mod peer;

use farblock_host::{ConnectError, Controller, Error, Options, TcpRefusal, Url, discover};
use farblock_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, ConnectCommand, ConnectInvalidParameter, FabricsCommandType,
};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::tcp::{DigestFlags, FatalErrorStatus, LAST_PDU, SUCCESS};
use farblock_wire::{Status, property};
use peer::{Capsule, Connection, Handled, Peer, SUBSYSTEM, Script, digests, options};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn connect(address: &str, options: &Options) -> Result<Controller, ConnectError> {
    Controller::connect(address, SUBSYSTEM, options).map_err(|error| match error {
        Error::Connect { reason, .. } => reason,
        other => panic!("{other}"),
    })
}

/// Returns the error of an attempt to connect to a server that handles every connection with
/// `server`.
fn against(server: impl Fn(TcpStream) + Send + 'static) -> ConnectError {
    against_with(server, &options())
}

fn against_with(server: impl Fn(TcpStream) + Send + 'static, options: &Options) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().for_each(|stream| server(stream.unwrap())));
    let start = Instant::now();
    let error = connect(&address, options).expect_err("no controller answers");
    // This limit is far longer than the timeout in the options, because a busy machine may be slow.
    assert!(start.elapsed() < Duration::from_secs(60), "{error} took {:?}", start.elapsed());
    error
}

fn is_connect(capsule: &Capsule) -> bool {
    capsule.sqe.opcode == AdminOpcode::FABRICS.0
        && capsule.sqe.fctype() == FabricsCommandType::CONNECT.0
}

fn refusing(status: Status, result: u64) -> ConnectError {
    let peer = Peer::with_hook(move |connection, _, capsule| {
        if is_connect(capsule) {
            connection.respond(capsule.cid(), status, result)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    connect(&peer.address(), &options()).expect_err("the peer refuses")
}

#[test]
fn a_controller_is_enabled_and_shut_down() {
    let peer = Peer::new(Script::default());
    let controller = connect(&peer.address(), &options()).unwrap();
    let info = controller.info();
    assert_eq!((info.cntlid, info.serial.as_str()), (peer::CNTLID, "SERIAL"));
    assert_eq!((info.model.as_str(), info.firmware.as_str()), ("A scripted disk", "1.0"));
    assert_eq!(info.version, property::Version::V2_0);
    assert_eq!((info.max_transfer_bytes, info.in_capsule_bytes), (Some(128 << 10), 8192));
    assert_eq!((info.queues, info.max_queue_entries), (8, 128));
    assert!(info.has_deallocate() && info.has_write_zeroes() && info.volatile_cache);
    assert_eq!(controller.namespace_ids().unwrap(), [1]);
    let namespace = controller.namespace(1).unwrap();
    assert_eq!(namespace.info().uuid, Some(*b"uuid-of-the-disk"));
    let missing = controller.namespace(2).err().expect("namespace 2 does not exist").to_string();
    assert_eq!(missing, "namespace 2: the namespace does not exist");
    drop(controller);
    assert!(!peer.was_shut_down(), "the controller was shut down although its namespace is in use");
    drop(namespace);
    assert!(peer.was_shut_down());
}

#[test]
fn connect_sends_the_host_and_subsystem_names() {
    let peer = Peer::with_hook(|_, qid, capsule| {
        if is_connect(capsule) {
            let command = ConnectCommand::from_sqe(&capsule.sqe);
            let data = capsule.connect_data();
            assert_eq!(command.cattr, CATTR_DISABLE_SQ_FLOW);
            assert_eq!(data.subsystem_nqn(), Ok(SUBSYSTEM));
            assert_eq!(data.host_nqn(), Ok("nqn.2014-08.org.example:tester"));
            assert_eq!(&data.hostid, b"farblock-testing");
            let (cntlid, kato) = if qid == 0 { (0xffff, 60_000) } else { (peer::CNTLID, 0) };
            assert_eq!((data.cntlid.get(), command.kato.get()), (cntlid, kato));
        }
        Ok(Handled::No)
    });
    let url: Url = format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address()).parse().unwrap();
    let controller = Controller::connect_url(&url, &options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    farblock_block::blocking::Blocking::new(&namespace).unwrap().flush().unwrap();
}

#[test]
fn each_connect_status_becomes_its_own_error() {
    let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    let data = |offset| refusing(invalid, ConnectInvalidParameter::in_data(offset).emit());
    let command = |offset| refusing(invalid, ConnectInvalidParameter::in_command(offset).emit());
    assert_eq!(data(256), ConnectError::NoSuchSubsystem);
    assert_eq!(data(512), ConnectError::HostNotAllowed);
    assert_eq!(command(44), ConnectError::QueueSizeInvalid);
    let simple = |status: Status| refusing(status, 0);
    assert_eq!(simple(Status::CONNECT_INVALID_HOST), ConnectError::HostNotAllowed);
    assert_eq!(simple(Status::CONNECT_CONTROLLER_BUSY), ConnectError::ControllerBusy);
    assert_eq!(refusing(Status::SUCCESS, 0x0002_0007), ConnectError::AuthenticationRequired);
}

#[test]
fn a_missing_listener_and_an_unknown_name_are_reported() {
    // The system never assigns this port, so no program listens there.
    assert_eq!(connect("127.0.0.1:1", &options()).unwrap_err(), ConnectError::Refused);
    let error = connect("no-such-host.invalid:4420", &options()).unwrap_err();
    assert!(matches!(error, ConnectError::Unresolved(_)), "{error}");
}

#[test]
fn a_peer_with_another_protocol_is_recognized() {
    // Each server reads the request first: the close of a socket with unread data would reset the
    // connection.
    let answering = |answer: &'static [u8], piece_bytes: usize| {
        against(move |mut stream| {
            let _ = stream.read_exact(&mut [0; 128]);
            for piece in answer.chunks(piece_bytes) {
                let _ = stream.write_all(piece);
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let http = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", 100);
    assert_eq!(
        http.to_string(),
        "the peer does not speak NVMe/TCP: it looks like a web server (HTTP)"
    );
    let ssh = answering(b"SSH-2.0-OpenSSH_9.6\r\n", 1);
    assert_eq!(
        ssh,
        ConnectError::Tcp(TcpRefusal::NotNvmeTcp { looks_like: Some("an SSH server") })
    );
    assert_eq!(
        answering(&[0xa5; 200], 200),
        ConnectError::Tcp(TcpRefusal::NotNvmeTcp { looks_like: None })
    );
    // An ICReq, which only a host sends.
    const IC_REQ: [u8; 128] = {
        let mut bytes = [0; 128];
        (bytes[2], bytes[4]) = (128, 128);
        bytes
    };
    assert_eq!(
        answering(&IC_REQ, 128),
        ConnectError::Tcp(TcpRefusal::NotNvmeTcp { looks_like: None })
    );
}

#[test]
fn silent_and_closing_peers_are_reported() {
    let after = Duration::from_secs(1);
    let impatient = Options { connect_timeout: after, ..options() };
    let silent = against_with(
        |stream| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(60));
                drop(stream);
            });
        },
        &impatient,
    );
    assert!(
        matches!(silent, ConnectError::TimedOut { after: time, .. } if time == after),
        "{silent:?}"
    );
    let closed = against(|mut stream| {
        let mut request = [0; 128];
        let _ = stream.read_exact(&mut request);
    });
    assert!(matches!(closed, ConnectError::Closed { .. }), "{closed:?}");
    let after_ic = against(|stream| {
        let mut connection = Connection::new(stream);
        let _ = connection.initialize(DigestFlags::NONE, 4096);
        let _ = connection.command();
    });
    assert!(matches!(after_ic, ConnectError::Closed { .. }), "{after_ic}");
}

#[test]
fn a_termination_by_the_controller_is_reported() {
    let status = FatalErrorStatus::UNSUPPORTED_PARAMETER;
    let at_once = against(move |mut stream| {
        let _ = stream.read_exact(&mut [0; 128]);
        let _ = Connection::new(stream).terminate(status);
    });
    assert_eq!(at_once, ConnectError::Tcp(TcpRefusal::Terminated(status)));
    let after_ic = against(move |stream| {
        let mut connection = Connection::new(stream);
        let _ = connection.initialize(DigestFlags::NONE, 4096);
        let _ = connection.command();
        let _ = connection.terminate(status);
    });
    assert_eq!(after_ic, ConnectError::Tcp(TcpRefusal::Terminated(status)));
}

#[test]
fn a_controller_must_grant_exactly_the_requested_digests() {
    let wanted = Options { tcp: digests(true, true), ..options() };
    let grants = |digests| {
        let peer = Peer::new(Script { digests, ..Script::default() });
        connect(&peer.address(), &wanted).map(drop)
    };
    assert_eq!(grants(DigestFlags::HEADER), Err(ConnectError::Tcp(TcpRefusal::DigestsRefused)));
    assert_eq!(grants(DigestFlags::BOTH), Ok(()));
    // The target grants digests that the host did not request.
    let error = against(|stream| {
        let mut connection = Connection::new(stream);
        let mut request = [0; 128];
        let _ = connection.stream.read_exact(&mut request);
        let ic = farblock_wire::tcp::IcResp::new(0, DigestFlags::DATA, 4096);
        let _ = connection.write(farblock_wire::IntoBytes::as_bytes(&ic));
    });
    assert_eq!(
        error,
        ConnectError::Protocol("ICResp enables digests that this host did not request")
    );
}

#[test]
fn wrong_digests_during_the_connect_are_reported() {
    let options = Options { tcp: digests(true, true), ..options() };
    let damaged = |header| {
        let peer = Peer::with_hook(move |connection, _, capsule| {
            if is_connect(capsule) {
                connection.corrupt_header_digest = header;
                connection.corrupt_data_digest = !header;
            }
            Ok(Handled::No)
        });
        connect(&peer.address(), &options).unwrap_err()
    };
    assert_eq!(damaged(true), ConnectError::Tcp(TcpRefusal::DigestMismatch));
    // The first data with a digest belong to Identify.
    assert_eq!(damaged(false), ConnectError::Tcp(TcpRefusal::DigestMismatch));
}

#[test]
fn a_controller_that_is_not_ready_or_fatal_is_reported() {
    let with_csts = |csts: property::Csts| {
        let peer = Peer::with_hook(move |connection, _, capsule| {
            let sqe = &capsule.sqe;
            let get = farblock_wire::fabrics::PropertyGetCommand::from_sqe(sqe);
            let is_get = sqe.fctype() == FabricsCommandType::PROPERTY_GET.0;
            if sqe.opcode == 0x7f && is_get && get.ofst.get() == property::offset::CSTS {
                connection.respond(capsule.cid(), Status::SUCCESS, csts.0.into())?;
                return Ok(Handled::Yes);
            }
            Ok(Handled::No)
        });
        connect(&peer.address(), &options()).unwrap_err()
    };
    // CAP.TO is 2 units of 500 ms, so the host must wait longer than one second.
    let after = Duration::from_millis(1500);
    assert_eq!(with_csts(property::Csts(0)), ConnectError::NotReady { after });
    assert_eq!(with_csts(property::Csts(2)), ConnectError::ControllerFatal);
}

#[test]
fn a_failed_identify_is_reported() {
    let peer = Peer::with_hook(|connection, _, capsule| {
        if capsule.sqe.opcode == AdminOpcode::IDENTIFY.0 {
            connection.respond(capsule.cid(), Status::INTERNAL_ERROR, 0)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let error = connect(&peer.address(), &options()).unwrap_err();
    assert_eq!(error.to_string(), "Identify Controller failed: Internal Error");
}

#[test]
fn the_host_asks_a_busy_controller_for_a_queue_again() {
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&tries);
    let peer = Peer::with_hook(move |connection, qid, capsule| {
        if is_connect(capsule) && qid == 1 && seen.fetch_add(1, Ordering::Relaxed) < 2 {
            connection.respond(capsule.cid(), Status::CONNECT_CONTROLLER_BUSY, 0)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let namespace = connect(&peer.address(), &options()).unwrap().namespace(1).unwrap();
    farblock_block::blocking::Blocking::new(&namespace).unwrap();
    assert_eq!(tries.load(Ordering::Relaxed), 3);
}

#[test]
fn at_most_the_granted_queues_open_and_closed_queues_are_reused() {
    let peer = Peer::new(Script { queues: 2, ..Script::default() });
    let namespace = connect(&peer.address(), &options()).unwrap().namespace(1).unwrap();
    let reactor = farblock_reactor::Reactor::new(&farblock_reactor::Config::default()).unwrap();
    let task = reactor.add_task();
    let first = namespace.open_queue(&reactor, task).unwrap();
    let second = namespace.open_queue(&reactor, task).unwrap();
    let error = namespace
        .open_queue(&reactor, task)
        .err()
        .expect("only two queues are granted")
        .to_string();
    assert!(error.contains("all 2 I/O queues"), "{error}");
    drop(first);
    let third = namespace.open_queue(&reactor, task).unwrap();
    drop((second, third));
}

#[test]
fn invalid_options_are_reported() {
    let with = |options: &Options, subsystem: &str| {
        Controller::connect("127.0.0.1:1", subsystem, options).unwrap_err().to_string()
    };
    let zero = Options { queue_depth: 0, ..options() };
    assert!(with(&zero, SUBSYSTEM).contains("queue depth"));
    assert!(with(&options(), "").contains("NQN is empty"));
    assert!(with(&options(), &"n".repeat(224)).contains("223"));
    let error = Controller::connect("a:b:c", SUBSYSTEM, &options()).unwrap_err().to_string();
    assert!(error.contains("brackets"), "{error}");
}

/// Starts a target with a discovery log page of this many records. The generation of the log page
/// changes from 1 to 2 while the host reads the page.
fn discovery_peer(records: u64) -> Peer {
    let reads = AtomicUsize::new(0);
    Peer::new(Script {
        cntrltype: 2,
        hook: Box::new(move |connection, _, capsule| {
            if is_connect(capsule) {
                assert_eq!(capsule.connect_data().subsystem_nqn(), Ok(DISCOVERY_NQN));
                assert_eq!(ConnectCommand::from_sqe(&capsule.sqe).kato.get(), 0);
            }
            if capsule.sqe.opcode != AdminOpcode::GET_LOG_PAGE.0 {
                return Ok(Handled::No);
            }
            let generation = if reads.fetch_add(1, Ordering::Relaxed) < 2 { 1u64 } else { 2 };
            let page = discovery_page(generation, records);
            let length = capsule.sqe.dptr.length.get() as usize;
            let start = capsule.sqe.cdw12.get() as usize;
            let mut data = page.get(start..).unwrap_or(&[]).to_vec();
            data.resize(length, 0);
            connection.push_all(capsule.cid(), &data, 4096, true)?;
            Ok(Handled::Yes)
        }),
        ..Script::default()
    })
}

fn discovery_page(generation: u64, records: u64) -> Vec<u8> {
    let mut page = vec![0; 1024];
    page[..8].copy_from_slice(&generation.to_le_bytes());
    page[8..16].copy_from_slice(&records.to_le_bytes());
    for index in 0..records.min(100) {
        let mut record = vec![0; 1024];
        record[..3].copy_from_slice(&[3, 1, 2]);
        record[4..6].copy_from_slice(&(generation as u16).to_le_bytes());
        record[32..37].copy_from_slice(b"4420 ");
        let name = format!("nqn.2024-01.example:disk{index}\x1b[31m");
        record[256..256 + name.len()].copy_from_slice(name.as_bytes());
        record[512..521].copy_from_slice(b"127.0.0.1");
        page.extend(record);
    }
    page
}

#[test]
fn discovery_rereads_a_log_page_that_changes() {
    let peer = discovery_peer(37);
    let entries = discover(&peer.address(), &options()).unwrap();
    assert_eq!(entries.len(), 37);
    assert!(entries.iter().all(|entry| entry.port_id == 2), "records of two generations");
    // The library returns the name unchanged, with its control characters. A program that prints
    // the name must escape them.
    assert_eq!(entries[36].subnqn, "nqn.2024-01.example:disk36\u{1b}[31m");
    assert!(entries[0].is_subsystem() && entries[0].is_tcp());
    assert_eq!(farblock_host::entry_address(&entries[0]), "127.0.0.1:4420");
}

#[test]
fn discovery_accepts_no_records_and_refuses_absurd_counts() {
    assert!(discover(&discovery_peer(0).address(), &options()).unwrap().is_empty());
    let error = discover(&discovery_peer(u64::MAX).address(), &options()).unwrap_err().to_string();
    assert!(error.contains("claims 18446744073709551615 records"), "{error}");
}

#[test]
fn a_discovery_controller_must_authenticate_if_the_host_requires_it() {
    const DISCOVERY: u8 = 2;
    let peer = Peer::new(Script { cntrltype: DISCOVERY, ..Script::default() });
    let options = Options { dhchap_ctrl_secret: Some("target.key".into()), ..options() };
    let refused = connect(&peer.address(), &options).expect_err("the peer has not authenticated");
    assert_eq!(refused, ConnectError::AuthenticationNotOffered);
}

/// URLs that a program builds undergo the same checks as parsed URLs.
#[test]
fn an_invalid_url_struct_is_refused() {
    let url = Url { host: "127.0.0.1".to_owned(), ..Url::default() };
    for (wrong, sentence) in [
        (Url { port: Some(0), ..url.clone() }, "0 is not a port: use 1 to 65535"),
        (Url { host: String::new(), ..url.clone() }, "the address names no host"),
        (
            Url { host: "a\nb".to_owned(), ..url },
            "the host's name contains a blank or a control character",
        ),
    ] {
        let error = Controller::connect_url(&wrong, &Options::default()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Url(_)), "{error}");
        assert_eq!(error.to_string(), sentence);
    }
}

#[test]
fn a_short_identify_page_is_refused() {
    let peer = Peer::with_hook(|connection, qid, capsule| {
        if qid == 0 && capsule.sqe.opcode == AdminOpcode::IDENTIFY.0 {
            connection.push(capsule.cid(), 0, &[1; 100], LAST_PDU | SUCCESS)?;
            return Ok(Handled::Yes);
        }
        Ok(Handled::No)
    });
    let error = connect(&peer.address(), &options()).unwrap_err();
    assert_eq!(error, ConnectError::Protocol("the Identify Controller data is too short"));
}

#[test]
fn a_discovery_controller_has_no_namespaces() {
    let peer = Peer::new(Script { cntrltype: 2, ..Script::default() });
    let controller = connect(&peer.address(), &options()).expect("the host connects");
    let error = controller.namespace(1).err().expect("no namespace").to_string();
    assert!(error.contains("discovery controller (CNTRLTYPE 2)"), "{error}");
}
