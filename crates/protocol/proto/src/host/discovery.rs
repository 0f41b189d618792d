//! Reads a discovery log page in pieces, and again until all pieces have the same generation.
//!
//! ```text
//!  Header --> Entries(0) --> Entries(n) ... --> Check --> Done
//!    ^                                            | other generation
//!    +--------------------------------------------+
//! ```

use super::command::LogPage;
use super::info::{InfoError, text};
use alloc::string::String;
use alloc::vec::Vec;
use farblock_wire::log::{
    AddressFamily, DiscoveryLogEntry, DiscoveryLogHeader, LogPageId, SubsystemType, TransportType,
};

/// Bytes of the header, and of each record.
const RECORD_BYTES: usize = DiscoveryLogEntry::LEN;
/// The number of records that one command reads.
const RECORDS_PER_READ: u64 = 16;
/// The most records that the host accepts: a page of 16 MiB.
const RECORDS_MAX: u64 = 16384;
/// The host gives up after reading this many generations.
const GENERATIONS_MAX: u32 = 10;

/// One record of a discovery log page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// Transport type (TRTYPE).
    pub transport: TransportType,
    /// Address family (ADRFAM).
    pub address_family: AddressFamily,
    /// The kind of the entry (SUBTYPE).
    pub kind: SubsystemType,
    /// Transport requirements such as a secure channel (TREQ), uninterpreted.
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
    /// Whether the record is of TCP, so that this host can connect.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.transport == TransportType::TCP
    }

    /// Whether the record points to another discovery service.
    #[must_use]
    pub fn is_referral(&self) -> bool {
        self.kind == SubsystemType::REFERRAL
    }

    /// Whether the record points to a subsystem with storage.
    #[must_use]
    pub fn is_subsystem(&self) -> bool {
        self.kind == SubsystemType::NVM
    }

    fn parse(record: &DiscoveryLogEntry) -> Self {
        Self {
            transport: TransportType(record.trtype),
            address_family: AddressFamily(record.adrfam),
            kind: SubsystemType(record.subtype),
            requirements: record.treq,
            port_id: record.portid.get(),
            cntlid: record.cntlid.get(),
            admin_entries: record.asqsz.get(),
            address: text(&record.traddr),
            service: text(&record.trsvcid),
            subnqn: text(&record.subnqn),
        }
    }
}

/// The next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiscoveryStep {
    /// Get this part of the log page and pass it to [`DiscoveryReader::handle_data`].
    Read(LogPage),
    /// All records have arrived.
    Done,
}

/// The reader's state; see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DiscoveryState {
    /// Next: read the header.
    Header,
    /// Next: read the records from this one on.
    Entries(u64),
    /// Next: read the header again.
    Check,
    /// All records have been read.
    Done,
}

/// Reads a discovery log page; see the module's text.
#[derive(Clone, Debug)]
pub struct DiscoveryReader {
    state: DiscoveryState,
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
    /// A reader that has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: DiscoveryState::Header,
            generation: 0,
            records: 0,
            generations_seen: 0,
            entries: Vec::new(),
        }
    }

    /// The next part to read.
    #[must_use]
    pub fn step(&self) -> DiscoveryStep {
        let page = LogPage::new(LogPageId::DISCOVERY, RECORD_BYTES as u32);
        match self.state {
            DiscoveryState::Header | DiscoveryState::Check => DiscoveryStep::Read(page),
            DiscoveryState::Entries(from) => {
                let count = (self.records - from).min(RECORDS_PER_READ);
                DiscoveryStep::Read(LogPage {
                    offset: (1 + from) * RECORD_BYTES as u64,
                    bytes: count as u32 * RECORD_BYTES as u32,
                    ..page
                })
            }
            DiscoveryState::Done => DiscoveryStep::Done,
        }
    }

    /// Handles the data that [`Self::step`] requested.
    ///
    /// # Errors
    /// When the page is malformed, or changes too often while the host reads it.
    pub fn handle_data(&mut self, data: &[u8]) -> Result<(), InfoError> {
        match self.state {
            DiscoveryState::Header => self.handle_header(data),
            DiscoveryState::Check => {
                let header = DiscoveryLogHeader::parse(data).ok_or(InfoError::TooShort)?;
                if (header.genctr.get(), header.numrec.get()) == (self.generation, self.records) {
                    self.state = DiscoveryState::Done;
                    return Ok(());
                }
                self.entries.clear();
                self.handle_header(data)
            }
            DiscoveryState::Entries(from) => {
                let count = (self.records - from).min(RECORDS_PER_READ);
                for record in data.chunks(RECORD_BYTES).take(count as usize) {
                    let record = DiscoveryLogEntry::parse(record).ok_or(InfoError::TooShort)?;
                    self.entries.push(DiscoveryEntry::parse(&record));
                }
                if data.len() < count as usize * RECORD_BYTES {
                    return Err(InfoError::TooShort);
                }
                self.state = self.after(from + count);
                Ok(())
            }
            DiscoveryState::Done => panic!("data without a step"),
        }
    }

    fn handle_header(&mut self, data: &[u8]) -> Result<(), InfoError> {
        let header = DiscoveryLogHeader::parse(data).ok_or(InfoError::TooShort)?;
        let (generation, records) = (header.genctr.get(), header.numrec.get());
        if header.recfmt.get() != 0 {
            return Err(InfoError::RecordFormat(header.recfmt.get()));
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

    fn after(&self, read: u64) -> DiscoveryState {
        if read < self.records { DiscoveryState::Entries(read) } else { DiscoveryState::Check }
    }

    /// The records.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveryEntry> {
        self.entries
    }
}
