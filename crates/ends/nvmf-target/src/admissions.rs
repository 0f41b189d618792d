//! Counters of accepted, refused and authenticated peers, by reason. I/O commands do not update
//! these counters.

use farblock_proto::controller::Refusal as QueueRefusal;
use farblock_proto::host::{ConnectError, refused};
use farblock_proto::tcp::fault::Fault;
use farblock_tls::TlsError;
use farblock_wire::auth::FailureReason;
use farblock_wire::tcp::FatalErrorStatus;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of events for each reason. The map contains every reason from the target's start on,
/// so a reason without events has the count 0.
pub type ByReason = BTreeMap<&'static str, u64>;

/// A snapshot of the admission counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionCounts {
    /// The number of accepted connections.
    pub accepted: u64,
    /// The number of refused connections and queues, by reason.
    pub refused: ByReason,
    /// The number of protocol violations and digest errors, by kind.
    pub faults: ByReason,
    /// The number of queues whose host has authenticated.
    pub authenticated: u64,
    /// The number of queues whose host failed to authenticate, by reason.
    pub not_authenticated: ByReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The target has reached its connection limit.
    Full,
    /// The peer's address has reached its connection limit.
    AddressShare,
    /// The target cannot serve the connection, for example because the system refused a descriptor,
    /// or because an RDMA connection request is not valid.
    NotServed,
    /// The host sent no Connect command in time.
    Late,
    /// The target evicted the connection to free memory for other connections.
    Memory,
    /// The host connected without TLS, although it must use TLS.
    TlsMissing,
    /// The target has no TLS key for the identity that the host offered.
    TlsUnknownIdentity,
    /// The host's TLS key for this identity differs from the target's key.
    TlsWrongKey,
    /// The host's TLS key belongs to another host or another subsystem.
    TlsOtherHost,
    /// TLS failed for another reason.
    TlsFailed,
}

impl Reason {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Full, "full"),
        (Self::AddressShare, "address_share"),
        (Self::NotServed, "not_served"),
        (Self::Late, "late"),
        (Self::Memory, "memory"),
        (Self::TlsMissing, "tls_missing"),
        (Self::TlsUnknownIdentity, "tls_unknown_identity"),
        (Self::TlsWrongKey, "tls_wrong_key"),
        (Self::TlsOtherHost, "tls_other_host"),
        (Self::TlsFailed, "tls_failed"),
    ];

    fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(reason, _)| *reason == self);
        found.map_or("other", |(_, name)| name)
    }
}

impl From<&TlsError> for Reason {
    fn from(error: &TlsError) -> Self {
        match error {
            TlsError::NotTls => Self::TlsMissing,
            TlsError::UnknownIdentity { .. } => Self::TlsUnknownIdentity,
            TlsError::WrongKey(_) | TlsError::OtherKeys { .. } => Self::TlsWrongKey,
            TlsError::Unavailable(_)
            | TlsError::Refused(_)
            | TlsError::Broken(_)
            | TlsError::Closed => Self::TlsFailed,
        }
    }
}

const NO_SUBSYSTEM: &str = "no_subsystem";
const HOST_NOT_ALLOWED: &str = "host_not_allowed";
const BUSY: &str = "busy";
const INVALID: &str = "invalid";
const QUEUE_REASONS: [&str; 4] = [NO_SUBSYSTEM, HOST_NOT_ALLOWED, BUSY, INVALID];

fn queue_reason(refusal: &QueueRefusal) -> &'static str {
    match refused(refusal.status, refusal.result) {
        ConnectError::NoSuchSubsystem => NO_SUBSYSTEM,
        ConnectError::HostNotAllowed | ConnectError::IdentifierNotAllowed => HOST_NOT_ALLOWED,
        ConnectError::ControllerBusy => BUSY,
        _ => INVALID,
    }
}

const HEADER_DIGEST: &str = "header_digest";
const DATA_DIGEST: &str = "data_digest";
const PROTOCOL: &str = "protocol";
const FAULTS: [&str; 3] = [HEADER_DIGEST, DATA_DIGEST, PROTOCOL];

const LATE: &str = "late";
const FAILED: &str = "failed";
const OTHER: &str = "other";
const FAILURES: [(FailureReason, &str); 7] = [
    (FailureReason::FAILED, FAILED),
    (FailureReason::PROTOCOL_UNUSABLE, "protocol_unusable"),
    (FailureReason::CONCATENATION_MISMATCH, "concatenation_mismatch"),
    (FailureReason::HASH_UNUSABLE, "hash_unusable"),
    (FailureReason::GROUP_UNUSABLE, "group_unusable"),
    (FailureReason::INCORRECT_PAYLOAD, "incorrect_payload"),
    (FailureReason::INCORRECT_MESSAGE, "incorrect_message"),
];

struct Tally(Mutex<ByReason>);

impl Tally {
    fn new(reasons: impl IntoIterator<Item = &'static str>) -> Self {
        Self(Mutex::new(reasons.into_iter().map(|reason| (reason, 0)).collect()))
    }

    fn count(&self, reason: &'static str) {
        *self.0.lock().expect("no holder panics").entry(reason).or_default() += 1;
    }

    fn counts(&self) -> ByReason {
        self.0.lock().expect("no holder panics").clone()
    }
}

/// The live counters behind [`AdmissionCounts`].
pub(crate) struct Admissions {
    accepted: AtomicU64,
    refused: Tally,
    faults: Tally,
    authenticated: AtomicU64,
    not_authenticated: Tally,
}

impl Default for Admissions {
    fn default() -> Self {
        let refused = Reason::ALL.into_iter().map(|(_, name)| name).chain(QUEUE_REASONS);
        let failures = FAILURES.into_iter().map(|(_, name)| name).chain([LATE, OTHER]);
        Self {
            accepted: AtomicU64::new(0),
            refused: Tally::new(refused),
            faults: Tally::new(FAULTS),
            authenticated: AtomicU64::new(0),
            not_authenticated: Tally::new(failures),
        }
    }
}

impl Admissions {
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.refused.count(reason.name());
    }

    pub(crate) fn queue_refused(&self, refusal: &QueueRefusal) {
        self.refused.count(queue_reason(refusal));
    }

    pub(crate) fn fault(&self, fault: &Fault) {
        let is_digest = fault.status == FatalErrorStatus::HEADER_DIGEST_ERROR;
        self.faults.count(if is_digest { HEADER_DIGEST } else { PROTOCOL });
    }

    /// Counts a protocol error that a host found in the target's PDUs and reported with an
    /// H2CTermReq.
    pub(crate) fn terminated(&self) {
        self.faults.count(PROTOCOL);
    }

    pub(crate) fn data_damaged(&self) {
        self.faults.count(DATA_DIGEST);
    }

    pub(crate) fn authenticated(&self) {
        self.authenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed authentication. `None`: the authentication timed out.
    pub(crate) fn not_authenticated(&self, reason: Option<FailureReason>) {
        let name = |reason| {
            let found = FAILURES.into_iter().find(|(one, _)| *one == reason);
            found.map_or(OTHER, |(_, name)| name)
        };
        self.not_authenticated.count(reason.map_or(LATE, name));
    }

    pub(crate) fn counts(&self) -> AdmissionCounts {
        AdmissionCounts {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.counts(),
            faults: self.faults.counts(),
            authenticated: self.authenticated.load(Ordering::Relaxed),
            not_authenticated: self.not_authenticated.counts(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_reason_has_a_counter_from_the_start() {
        let admissions = Admissions::default();
        let before = admissions.counts();
        for (reason, _) in Reason::ALL {
            admissions.refused(reason);
        }
        FAILURES.into_iter().for_each(|(reason, _)| admissions.not_authenticated(Some(reason)));
        admissions.not_authenticated(None);
        admissions.not_authenticated(Some(FailureReason(0xee)));
        admissions.data_damaged();
        let after = admissions.counts();
        assert!(before.refused.keys().eq(after.refused.keys()));
        assert!(before.not_authenticated.keys().eq(after.not_authenticated.keys()));
        assert!(after.not_authenticated.values().all(|count| *count == 1));
        assert_eq!(after.refused.values().sum::<u64>(), Reason::ALL.len() as u64);
        assert_eq!((before.faults[DATA_DIGEST], after.faults[DATA_DIGEST]), (0, 1));
    }
}
