//! Reads a discovery log page in several pieces. Repeats the read until the generation did not
//! change between the first and the last piece.
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

/// Length in bytes of the header, and of each record.
const RECORD_BYTES: usize = DiscoveryLogEntry::LEN;
/// The number of records that one command reads.
const RECORDS_PER_READ: u64 = 16;
/// The host refuses a page with more records than this. A page with so many has 16 MiB.
const RECORDS_MAX: u64 = 16384;
/// If the page has changed this many times during the read, the host gives up.
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
    /// Transport requirements such as a secure channel (TREQ), as in the record.
    pub requirements: u8,
    /// Port identifier (PORTID).
    pub port_id: u16,
    /// Controller identifier (CNTLID); FFFFh: any controller.
    pub cntlid: u16,
    /// The largest number of entries in an admin queue (ASQSZ).
    pub admin_entries: u16,
    /// Address (TRADDR).
    pub address: String,
    /// Service (TRSVCID); for TCP, the port.
    pub service: String,
    /// Subsystem NQN (SUBNQN).
    pub subnqn: String,
}

impl DiscoveryEntry {
    /// Whether the record's transport is TCP.
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
    /// Read this part of the log page and pass it to [`DiscoveryReader::handle_data`].
    Read(LogPage),
    /// The reader has all records.
    Done,
}

/// The reader's state; see the diagram of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DiscoveryState {
    /// The next step reads the header.
    Header,
    /// The next step reads records, from this record.
    Entries(u64),
    /// The next step reads the header again.
    Check,
    /// The reader has all records.
    Done,
}

/// Reads a discovery log page; see the module.
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
    /// Creates a reader at the start of the page.
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

    /// Returns the next part to read.
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
    /// Fails if the page is malformed, or changes too often during the read.
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
            DiscoveryState::Done => panic!("data arrived after the last step"),
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

    /// Returns the records.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveryEntry> {
        self.entries
    }
}
