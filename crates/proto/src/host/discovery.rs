//! Reading a discovery log page, piece by piece, until one whole generation was seen.
//!
//! ```text
//!  Header --> Entries(0) --> Entries(n) ... --> Check --> Done
//!    ^                                            | other generation
//!    +--------------------------------------------+
//! ```

use super::command::{LOG_DISCOVERY, LogPage};
use super::info::{InfoError, text};
use alloc::string::String;
use alloc::vec::Vec;

/// Bytes of the header, and of each record.
const RECORD_BYTES: usize = 1024;
/// Records that are read at once.
const RECORDS_PER_READ: u64 = 16;
/// More records than this are a fault: the page would have 16 MiB.
const RECORDS_MAX: u64 = 16384;
/// Generations after which reading is given up.
const GENERATIONS_MAX: u32 = 10;

/// What a record points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscoveryKind {
    /// Another discovery service.
    Referral,
    /// A subsystem with storage.
    Subsystem,
    /// The discovery service that was asked, itself.
    Current,
    /// Something that is not known.
    Other(u8),
}

/// One record of a discovery log page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// Transport type (TRTYPE): 3 is TCP.
    pub transport: u8,
    /// Address family (ADRFAM): 1 is IPv4, 2 is IPv6.
    pub address_family: u8,
    /// What it points to (SUBTYPE).
    pub kind: DiscoveryKind,
    /// Secure channel requirements and the like (TREQ), as they are.
    pub requirements: u8,
    /// Port identifier (PORTID).
    pub port_id: u16,
    /// Controller identifier (CNTLID), FFFFh for any.
    pub cntlid: u16,
    /// Most entries of an admin queue (ASQSZ).
    pub admin_entries: u16,
    /// Address (TRADDR).
    pub address: String,
    /// Service, for TCP the port (TRSVCID).
    pub service: String,
    /// Subsystem NQN (SUBNQN).
    pub subnqn: String,
}

impl DiscoveryEntry {
    /// TRTYPE of TCP.
    pub const TCP: u8 = 3;

    /// Whether this host can connect to it.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.transport == Self::TCP
    }

    fn parse(record: &[u8; RECORD_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        Self {
            transport: record[0],
            address_family: record[1],
            kind: match record[2] {
                1 => DiscoveryKind::Referral,
                2 => DiscoveryKind::Subsystem,
                3 => DiscoveryKind::Current,
                other => DiscoveryKind::Other(other),
            },
            requirements: record[3],
            port_id: u16_at(4),
            cntlid: u16_at(6),
            admin_entries: u16_at(8),
            service: text(&record[32..64]),
            subnqn: text(&record[256..512]),
            address: text(&record[512..768]),
        }
    }
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiscoveryStep {
    /// Get this part of the log page and hand it to [`DiscoveryReader::handle_data`].
    Read(LogPage),
    /// All records are there.
    Done,
}

/// Where the reading is; see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The header is to be read.
    Header,
    /// Records are to be read, from this one on.
    Entries(u64),
    /// The header is to be read again.
    Check,
    /// All was read.
    Done,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct DiscoveryReader {
    state: State,
    generation: u64,
    records: u64,
    generations_seen: u32,
    entries: Vec<DiscoveryEntry>,
}

impl Default for DiscoveryReader {
    fn default() -> Self {
        Self::new()
    }
}

impl DiscoveryReader {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Header,
            generation: 0,
            records: 0,
            generations_seen: 0,
            entries: Vec::new(),
        }
    }

    /// What to read next.
    #[must_use]
    pub fn step(&self) -> DiscoveryStep {
        let page = LogPage::new(LOG_DISCOVERY, RECORD_BYTES as u32);
        match self.state {
            State::Header | State::Check => DiscoveryStep::Read(page),
            State::Entries(from) => {
                let count = (self.records - from).min(RECORDS_PER_READ);
                DiscoveryStep::Read(LogPage {
                    offset: (1 + from) * RECORD_BYTES as u64,
                    bytes: count as u32 * RECORD_BYTES as u32,
                    ..page
                })
            }
            State::Done => DiscoveryStep::Done,
        }
    }

    /// What [`Self::step`] asked for.
    ///
    /// # Errors
    /// When it makes no sense, or does not hold still.
    pub fn handle_data(&mut self, data: &[u8]) -> Result<(), InfoError> {
        match self.state {
            State::Header => self.handle_header(data),
            State::Check => {
                let (generation, records, _) = header(data)?;
                if (generation, records) == (self.generation, self.records) {
                    self.state = State::Done;
                    return Ok(());
                }
                self.entries.clear();
                self.handle_header(data)
            }
            State::Entries(from) => {
                let count = (self.records - from).min(RECORDS_PER_READ);
                let (records, _) = data.as_chunks::<RECORD_BYTES>();
                if (records.len() as u64) < count {
                    return Err(InfoError::TooShort);
                }
                self.entries.extend(records[..count as usize].iter().map(DiscoveryEntry::parse));
                self.state = self.after(from + count);
                Ok(())
            }
            State::Done => panic!("data without a step"),
        }
    }

    fn handle_header(&mut self, data: &[u8]) -> Result<(), InfoError> {
        let (generation, records, format) = header(data)?;
        if format != 0 {
            return Err(InfoError::RecordFormat(format));
        }
        if records > RECORDS_MAX {
            return Err(InfoError::TooManyRecords(records));
        }
        self.generations_seen += 1;
        if self.generations_seen > GENERATIONS_MAX {
            return Err(InfoError::Unstable);
        }
        (self.generation, self.records) = (generation, records);
        self.state = self.after(0);
        Ok(())
    }

    fn after(&self, read: u64) -> State {
        if read < self.records { State::Entries(read) } else { State::Check }
    }

    /// The records.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveryEntry> {
        self.entries
    }
}

/// GENCTR, NUMREC and RECFMT.
fn header(data: &[u8]) -> Result<(u64, u64, u16), InfoError> {
    let field = |at: usize| {
        let bytes = data.get(at..at + 8).ok_or(InfoError::TooShort)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    if data.len() < RECORD_BYTES {
        return Err(InfoError::TooShort);
    }
    Ok((field(0)?, field(8)?, field(16)? as u16))
}
