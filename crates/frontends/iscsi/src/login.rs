//! The login, which identifies the initiator and the target, and negotiates parameters (RFC 7143,
//! sections 6 and 13).
//!
//! ```text
//! Security ──(no authentication requested)──> Operational ──> Full feature phase
//!    └─────────────────────────────────────────────────────────^
//! ```

use crate::limits;
use crate::text::{self, yes_or_no};
use crate::wire::{LoginRequest, flag};
use std::fmt;

/// The status class and detail of a login response (RFC 7143, 11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(pub(crate) u16);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0x0000);
    pub(crate) const INITIATOR_ERROR: Status = Status(0x0200);
    pub(crate) const AUTHENTICATION_FAILURE: Status = Status(0x0201);
    pub(crate) const NOT_FOUND: Status = Status(0x0203);
    pub(crate) const UNSUPPORTED_VERSION: Status = Status(0x0205);
    pub(crate) const MISSING_PARAMETER: Status = Status(0x0207);
    pub(crate) const SESSION_TYPE: Status = Status(0x0209);
    pub(crate) const NO_SESSION: Status = Status(0x020a);
    pub(crate) const INVALID_DURING_LOGIN: Status = Status(0x020b);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Status::SUCCESS => "the login continues",
            Status::AUTHENTICATION_FAILURE => {
                "the initiator requested authentication, which this target does not support"
            }
            Status::NOT_FOUND => "the initiator named another target",
            Status::UNSUPPORTED_VERSION => "the initiator requested another version of iSCSI",
            Status::MISSING_PARAMETER => {
                "the initiator did not send its name, or the target's name"
            }
            Status::SESSION_TYPE => "the initiator requested an unknown session type",
            Status::NO_SESSION => "the initiator requested a second connection of a session",
            Status::INVALID_DURING_LOGIN => {
                "the initiator sent another request before the end of the login"
            }
            _ => "the initiator broke the protocol",
        })
    }
}

/// The login stages, as numbers on the wire.
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// The negotiated parameters of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameters {
    /// True for a session that only discovers targets.
    pub(crate) discovery: bool,
    /// True if a CRC32C follows every header.
    pub(crate) header_digest: bool,
    /// True if a CRC32C follows every data segment.
    pub(crate) data_digest: bool,
    /// The longest data segment that the target sends, in bytes.
    pub(crate) send_bytes: u32,
    /// The longest data segment that the target accepts, in bytes.
    pub(crate) receive_bytes: u32,
    /// The longest burst of data that the target requests by one R2T, in bytes.
    pub(crate) max_burst: u32,
    /// The maximum length of the data that the initiator sends without an R2T, in bytes, for one
    /// command.
    pub(crate) first_burst: u32,
    /// True if the initiator must wait for an R2T before it sends more data than the command's PDU
    /// contains.
    pub(crate) initial_r2t: bool,
    /// True if the command's PDU may contain data.
    pub(crate) immediate_data: bool,
    /// The maximum number of outstanding R2Ts of a command.
    pub(crate) max_r2t: u32,
}

impl Default for Parameters {
    /// The defaults of RFC 7143, which apply without negotiation.
    fn default() -> Parameters {
        Parameters {
            discovery: false,
            header_digest: false,
            data_digest: false,
            send_bytes: limits::DEFAULT_DATA_SEGMENT_BYTES,
            receive_bytes: limits::DEFAULT_DATA_SEGMENT_BYTES,
            max_burst: 262_144,
            first_burst: 65_536,
            initial_r2t: true,
            immediate_data: true,
            max_r2t: 1,
        }
    }
}

/// An initiator's identity.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Initiator {
    pub(crate) name: String,
    /// The initiator's part of the session identifier (ISID), which distinguishes its sessions.
    pub(crate) isid: [u8; 6],
}

/// The answer to a login request, without the sequence numbers.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) flags: u8,
    pub(crate) status: Status,
    pub(crate) text: Vec<u8>,
    /// True if the login is complete.
    pub(crate) done: bool,
}

#[derive(Debug)]
pub(crate) struct Login {
    stage: Option<u8>,
    requests: u32,
    text: text::Pieces,
    seen: Vec<String>,
    /// True after the target has declared its longest data segment.
    declared: bool,
    pub(crate) initiator: Initiator,
    pub(crate) parameters: Parameters,
}

impl Login {
    pub(crate) fn new() -> Login {
        Login {
            stage: None,
            requests: 0,
            text: text::Pieces::default(),
            seen: Vec::new(),
            declared: false,
            initiator: Initiator::default(),
            parameters: Parameters::default(),
        }
    }

    /// Returns the answer to a login request. The answer's status states whether the login
    /// continues.
    pub(crate) fn handle(&mut self, request: &LoginRequest, data: &[u8], target: &str) -> Answer {
        self.step(request, data, target).unwrap_or_else(|status| {
            let flags = request.flags & 0x0c;
            Answer { flags, status, text: Vec::new(), done: false }
        })
    }

    fn step(
        &mut self,
        request: &LoginRequest,
        data: &[u8],
        target: &str,
    ) -> Result<Answer, Status> {
        let (current, next) = (request.flags >> 2 & 3, request.flags & 3);
        self.requests += 1;
        if self.requests > limits::MAX_LOGIN_REQUESTS {
            return Err(Status::INITIATOR_ERROR);
        }
        if request.version_min > 0 {
            return Err(Status::UNSUPPORTED_VERSION);
        }
        if request.tsih.get() != 0 {
            // Refuse a second connection for a session, because a session has exactly one
            // connection.
            return Err(Status::NO_SESSION);
        }
        let transit = request.flags & flag::TRANSIT != 0;
        let goes_on = request.flags & flag::CONTINUE != 0;
        let stage = *self.stage.get_or_insert(current);
        let forward = next > current && next != 2;
        if current != stage || current > OPERATIONAL || transit && (goes_on || !forward) {
            return Err(Status::INITIATOR_ERROR);
        }
        if !self.text.add(data) {
            return Err(Status::INITIATOR_ERROR);
        }
        if goes_on {
            let flags = current << 2;
            let text = Vec::new();
            return Ok(Answer { flags, status: Status::SUCCESS, text, done: false });
        }
        let text = self.text.take();
        let pairs = text::parse(&text).map_err(|_| Status::INITIATOR_ERROR)?;
        let mut out = Vec::new();
        if self.initiator.name.is_empty() {
            self.identify(request, &pairs, target)?;
            if !self.parameters.discovery {
                text::emit(&mut out, "TargetPortalGroupTag", "1");
            }
        }
        for (key, value) in pairs {
            self.negotiate(current, key, value, &mut out)?;
        }
        if current == OPERATIONAL && !std::mem::replace(&mut self.declared, true) {
            self.parameters.receive_bytes = limits::MAX_DATA_SEGMENT_BYTES;
            let most = limits::MAX_DATA_SEGMENT_BYTES.to_string();
            text::emit(&mut out, "MaxRecvDataSegmentLength", &most);
        }
        if out.len() > limits::DEFAULT_DATA_SEGMENT_BYTES as usize {
            return Err(Status::INITIATOR_ERROR);
        }
        let mut flags = current << 2;
        if transit {
            flags |= flag::TRANSIT | next;
            self.stage = Some(next);
        }
        let done = transit && next == FULL_FEATURE;
        if done {
            let parameters = &mut self.parameters;
            parameters.first_burst = parameters.first_burst.min(parameters.max_burst);
        }
        Ok(Answer { flags, status: Status::SUCCESS, text: out, done })
    }

    /// Reads the names of the initiator and the target, and the session type.
    fn identify(
        &mut self,
        request: &LoginRequest,
        pairs: &[(&str, &str)],
        target: &str,
    ) -> Result<(), Status> {
        let find = |wanted| pairs.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        let name = find("InitiatorName").ok_or(Status::MISSING_PARAMETER)?;
        if !text::is_name(name) {
            return Err(Status::INITIATOR_ERROR);
        }
        // Names are compared in lower case (RFC 7143, 4.2.7.1).
        self.initiator = Initiator { name: name.to_lowercase(), isid: request.isid };
        self.parameters.discovery = match find("SessionType") {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(Status::SESSION_TYPE),
        };
        match find("TargetName") {
            Some(name) if name.eq_ignore_ascii_case(target) => Ok(()),
            Some(_) if !self.parameters.discovery => Err(Status::NOT_FOUND),
            None if !self.parameters.discovery => Err(Status::MISSING_PARAMETER),
            _ => Ok(()),
        }
    }

    /// Negotiates one key, and appends the answer to `out`.
    fn negotiate(
        &mut self,
        stage: u8,
        key: &str,
        value: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        if self.seen.iter().any(|seen| seen == key) {
            return Err(Status::INITIATOR_ERROR);
        }
        self.seen.push(key.to_owned());
        match key {
            "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => return Ok(()),
            "AuthMethod" if stage == SECURITY => {
                let none = value.split(',').any(|method| method == "None");
                text::emit(out, key, if none { "None" } else { "Reject" });
                return if none { Ok(()) } else { Err(Status::AUTHENTICATION_FAILURE) };
            }
            _ => {}
        }
        let parameters = &mut self.parameters;
        let reply = match key {
            _ if stage != OPERATIONAL => "NotUnderstood".to_owned(),
            "HeaderDigest" => digest(value, &mut parameters.header_digest)?,
            "DataDigest" => digest(value, &mut parameters.data_digest)?,
            "MaxRecvDataSegmentLength" => {
                parameters.send_bytes = in_range(value, 512, (1 << 24) - 1)?;
                return Ok(());
            }
            "MaxBurstLength" => {
                let burst = in_range(value, 512, (1 << 24) - 1)?;
                parameters.max_burst = burst.min(limits::MAX_BURST_BYTES);
                parameters.max_burst.to_string()
            }
            "FirstBurstLength" => {
                let burst = in_range(value, 512, (1 << 24) - 1)?;
                parameters.first_burst = burst.min(limits::MAX_FIRST_BURST_BYTES);
                parameters.first_burst.to_string()
            }
            "InitialR2T" => {
                parameters.initial_r2t = boolean(value)?;
                value.to_owned()
            }
            "ImmediateData" => {
                parameters.immediate_data = boolean(value)?;
                value.to_owned()
            }
            "MaxOutstandingR2T" => {
                let most = in_range(value, 1, 65_535)?;
                parameters.max_r2t = most.min(limits::MAX_OUTSTANDING_R2T);
                parameters.max_r2t.to_string()
            }
            _ => fixed(key, value)?,
        };
        text::emit(out, key, &reply);
        Ok(())
    }
}

/// The answer to a key for which the target supports only one value.
fn fixed(key: &str, value: &str) -> Result<String, Status> {
    Ok(match key {
        "MaxConnections" => in_range(value, 1, 65_535).map(|_| "1".to_owned())?,
        "ErrorRecoveryLevel" => in_range(value, 0, 2).map(|_| "0".to_owned())?,
        "DefaultTime2Wait" => in_range(value, 0, 3600)?.to_string(),
        "DefaultTime2Retain" => in_range(value, 0, 3600).map(|_| "0".to_owned())?,
        "DataPDUInOrder" | "DataSequenceInOrder" => {
            boolean(value)?;
            yes_or_no(true).to_owned()
        }
        // RFC 7143 removed markers (which IFMarker and OFMarker negotiate), but older initiators
        // still offer them.
        "IFMarker" | "OFMarker" => yes_or_no(false).to_owned(),
        "IFMarkInt" | "OFMarkInt" => "Irrelevant".to_owned(),
        "iSCSIProtocolLevel" => in_range(value, 0, 31)?.min(1).to_string(),
        "TaskReporting" => "RFC3720".to_owned(),
        "SendTargets" => return Err(Status::INVALID_DURING_LOGIN),
        _ => "NotUnderstood".to_owned(),
    })
}

fn in_range(value: &str, least: u32, most: u32) -> Result<u32, Status> {
    text::number(value)
        .filter(|number| (least..=most).contains(number))
        .ok_or(Status::INITIATOR_ERROR)
}

fn boolean(value: &str) -> Result<bool, Status> {
    text::boolean(value).ok_or(Status::INITIATOR_ERROR)
}

/// Chooses the first supported digest in the initiator's list.
fn digest(offered: &str, agreed: &mut bool) -> Result<String, Status> {
    let known = |digest: &&str| matches!(*digest, "None" | "CRC32C");
    let digest = offered.split(',').find(known).ok_or(Status::INITIATOR_ERROR)?;
    *agreed = digest == "CRC32C";
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "iqn.2026-11.org.farblock:disk";

    fn request(flags: u8) -> LoginRequest {
        LoginRequest { flags, isid: [1, 2, 3, 4, 5, 6], ..LoginRequest::default() }
    }

    fn keys(pairs: &[&str]) -> Vec<u8> {
        pairs.iter().flat_map(|pair| [pair.as_bytes(), b"\0"].concat()).collect()
    }

    const WHO: &str = "InitiatorName=iqn.2026-11.test:host";
    const WHOM: &str = "TargetName=iqn.2026-11.org.farblock:DISK";

    #[test]
    fn a_login_in_one_request_succeeds() {
        let mut login = Login::new();
        let text = keys(&[
            WHO,
            WHOM,
            "HeaderDigest=CRC32C,None",
            "DataDigest=None,CRC32C",
            "MaxRecvDataSegmentLength=65536",
            "MaxBurstLength=16776192",
            "FirstBurstLength=16777215",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxOutstandingR2T=64",
            "MaxConnections=8",
            "ErrorRecoveryLevel=2",
            "X-com.example=1",
        ]);
        let answer = login.handle(&request(0x87), &text, TARGET);
        assert_eq!((answer.status, answer.flags, answer.done), (Status::SUCCESS, 0x87, true));
        let said = text::parse(&answer.text).expect("a text");
        let expected = [
            ("TargetPortalGroupTag", "1"),
            ("HeaderDigest", "CRC32C"),
            ("DataDigest", "None"),
            ("MaxBurstLength", "1048576"),
            ("FirstBurstLength", "262144"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxOutstandingR2T", "8"),
            ("MaxConnections", "1"),
            ("ErrorRecoveryLevel", "0"),
            ("X-com.example", "NotUnderstood"),
            ("MaxRecvDataSegmentLength", "262144"),
        ];
        assert_eq!(said, expected);
        let agreed = login.parameters;
        assert!(agreed.header_digest && !agreed.data_digest && !agreed.initial_r2t);
        assert_eq!((agreed.send_bytes, agreed.receive_bytes), (65_536, 262_144));
        assert_eq!(login.initiator.name, "iqn.2026-11.test:host");
    }

    #[test]
    fn a_login_in_stages_and_pieces_succeeds() {
        let mut login = Login::new();
        let answer = login.handle(&request(0x40), &keys(&[WHO]), TARGET);
        assert_eq!(
            (answer.flags, answer.text.len()),
            (0, 0),
            "the target does not wait for the rest"
        );
        let rest = keys(&[WHOM, "AuthMethod=CHAP,None"]);
        let answer = login.handle(&request(0x81), &rest, TARGET);
        assert_eq!((answer.status, answer.flags), (Status::SUCCESS, 0x81));
        let said = text::parse(&answer.text).expect("a text");
        assert_eq!(said, [("TargetPortalGroupTag", "1"), ("AuthMethod", "None")]);
        let answer = login.handle(&request(0x04), &keys(&["MaxBurstLength=512"]), TARGET);
        assert_eq!(
            (answer.flags, answer.done),
            (0x04, false),
            "the stage changes without a request"
        );
        let answer = login.handle(&request(0x87), b"", TARGET);
        assert_eq!((answer.flags, answer.done), (0x87, true));
        assert_eq!(login.parameters.first_burst, 512, "the first burst exceeds the maximum burst");
    }

    #[test]
    fn a_discovery_login_succeeds() {
        let mut login = Login::new();
        let text = keys(&[WHO, "SessionType=Discovery", "AuthMethod=None"]);
        assert!(login.handle(&request(0x83), &text, TARGET).done);
        assert!(login.parameters.discovery);
    }

    #[test]
    fn invalid_logins_are_refused() {
        let refused = |flags, text: &[&str]| {
            let answer = Login::new().handle(&request(flags), &keys(text), TARGET);
            assert!(!answer.done && answer.text.is_empty());
            answer.status
        };
        assert_eq!(refused(0x87, &[WHOM]), Status::MISSING_PARAMETER);
        assert_eq!(refused(0x87, &[WHO]), Status::MISSING_PARAMETER);
        assert_eq!(refused(0x87, &[WHO, "TargetName=iqn.other:x"]), Status::NOT_FOUND);
        assert_eq!(refused(0x87, &[WHO, WHOM, "SessionType=Odd"]), Status::SESSION_TYPE);
        assert_eq!(refused(0x83, &[WHO, WHOM, "AuthMethod=CHAP"]), Status::AUTHENTICATION_FAILURE);
        assert_eq!(refused(0x87, &[WHO, WHOM, "SendTargets=All"]), Status::INVALID_DURING_LOGIN);
        let wrong: &[&[&str]] = &[
            &["InitiatorName=me", WHOM],
            &[WHO, WHOM, "MaxBurstLength=511"],
            &[WHO, WHOM, "MaxBurstLength=16777216"],
            &[WHO, WHOM, "InitialR2T=Maybe"],
            &[WHO, WHOM, "HeaderDigest=MD5"],
            &[WHO, WHOM, "MaxConnections=1", "MaxConnections=1"],
            &[WHO, WHOM, "no pair"],
        ];
        for text in wrong {
            assert_eq!(refused(0x87, text), Status::INITIATOR_ERROR, "{text:?}");
        }
        // Invalid stage changes: to an earlier stage, to an undefined stage, while more text
        // follows, and from the full feature phase.
        for flags in [0x84, 0x86, 0xc7, 0x8f, 0x85] {
            assert_eq!(refused(flags, &[WHO, WHOM]), Status::INITIATOR_ERROR, "{flags:#x}");
        }
    }

    #[test]
    fn unsupported_versions_unknown_sessions_and_long_logins_are_refused() {
        let text = keys(&[WHO, WHOM]);
        let newer = LoginRequest { version_min: 1, ..request(0x87) };
        let answer = Login::new().handle(&newer, &text, TARGET);
        assert_eq!(answer.status, Status::UNSUPPORTED_VERSION);
        let joining = LoginRequest { tsih: 1.into(), ..request(0x87) };
        assert_eq!(Login::new().handle(&joining, &text, TARGET).status, Status::NO_SESSION);
        let mut login = Login::new();
        login.handle(&request(0x04), &text, TARGET);
        for _ in 1..limits::MAX_LOGIN_REQUESTS {
            assert_eq!(login.handle(&request(0x04), b"", TARGET).status, Status::SUCCESS);
        }
        assert_eq!(login.handle(&request(0x04), b"", TARGET).status, Status::INITIATOR_ERROR);
        // Many short keys, whose answers exceed the limit.
        let many: Vec<String> = (0..1000).map(|n| format!("k{n}=")).collect();
        let mut text = keys(&[WHO, WHOM]);
        many.iter().for_each(|key| text.extend(keys(&[key])));
        let answer = Login::new().handle(&request(0x87), &text, TARGET);
        assert_eq!((answer.status, answer.text.len()), (Status::INITIATOR_ERROR, 0));
    }
}
