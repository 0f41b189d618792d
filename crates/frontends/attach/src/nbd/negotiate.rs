//! The NBD negotiation, without I/O: consumes a client's bytes, and returns answers and the
//! outcome.
//!
//! ```text
//! ClientFlags ──> Option <──────────────> Skipping (an option longer than the limit)
//!                   │ GO, EXPORT_NAME
//!                   v
//!             (transmission)
//! ```

use super::contexts::{self, Question};
use super::limits;
use super::wire::{self, Reader, flag, handshake, info, option, reply};
use farblock_block::Geometry;
use farblock_frontend::pieces::piece_blocks;

/// The properties of an export that a client can see.
#[derive(Clone, Debug)]
pub(super) struct Export {
    /// The name of the export. Clients may also use the empty name.
    pub(super) name: String,
    /// A description for users.
    pub(super) description: String,
    pub(super) geometry: Geometry,
}

impl Export {
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags, for the client.
    fn flags(&self, structured: bool) -> u16 {
        // Offer flushes even if the namespace needs none, because some clients require them.
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if structured {
            flags |= flag::SEND_DF;
        }
        if self.geometry.read_only {
            return flags | flag::READ_ONLY;
        }
        flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        if self.geometry.deallocate {
            flags |= flag::SEND_TRIM;
        }
        flags
    }

    /// The smallest and the preferred block size, and the largest payload, in bytes.
    fn block_sizes(&self) -> [u32; 3] {
        let block_size = self.geometry.block_size;
        let preferred = block_size
            .checked_mul(self.geometry.preferred_blocks.max(1))
            .filter(|&bytes| bytes.is_power_of_two() && bytes <= limits::PIECE_BYTES)
            .unwrap_or(block_size);
        [block_size, preferred.max(4096), max_payload_bytes(&self.geometry)]
    }
}

/// The maximum length of one request, in bytes.
pub(super) fn max_payload_bytes(geometry: &Geometry) -> u32 {
    // A request may start and end within a block, so its first and last piece may be shorter.
    let pieces = u64::from(piece_blocks(geometry)) * u64::from(limits::MAX_PIECES - 2);
    let bytes = pieces * u64::from(geometry.block_size);
    // Both values are multiples of the block size.
    bytes.min(u64::from(limits::MAX_PAYLOAD_BYTES)) as u32
}

/// The settings on which client and server have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Agreement {
    /// True if the server answers reads with structured replies.
    pub(super) structured: bool,
    /// True if the client has queried the block sizes. The client must then obey the block sizes.
    pub(super) knows_block_sizes: bool,
    /// True if the client may query the allocation (`base:allocation`).
    pub(super) allocation: bool,
}

/// The state of the negotiation after some of the client's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The negotiation needs more bytes.
    More,
    /// The negotiation is complete. Further bytes are requests.
    Done(Agreement),
    /// The client ends the negotiation, or the server cannot serve it. Send the pending output,
    /// then close the connection. The text is the error for the log; it is empty if the client
    /// ended the negotiation.
    Close(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NegotiationState {
    /// The client's flags are the next bytes.
    ClientFlags,
    /// An option is next.
    Option,
    /// The number of bytes of an option that are still to be skipped.
    Skipping(u32),
}

/// The negotiation with one client.
pub(super) struct Negotiation {
    state: NegotiationState,
    no_zeroes: bool,
    options: u32,
    agreement: Agreement,
    /// The received part of an option or of the client's flags. Never longer than
    /// [`limits::MAX_OPTION_BYTES`] plus a header.
    partial: Vec<u8>,
}

impl Negotiation {
    /// Starts a negotiation. Appends the server's greeting to `out`.
    pub(super) fn start(out: &mut Vec<u8>) -> Negotiation {
        out.extend(wire::INIT_MAGIC.to_be_bytes());
        out.extend(wire::OPTION_MAGIC.to_be_bytes());
        out.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Negotiation {
            state: NegotiationState::ClientFlags,
            no_zeroes: false,
            options: 0,
            agreement: Agreement::default(),
            partial: Vec::new(),
        }
    }

    /// Consumes the negotiation's bytes at the front of `input`, and appends the answers to `out`.
    pub(super) fn handle(
        &mut self,
        export: &Export,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        loop {
            let progress = match self.state {
                NegotiationState::ClientFlags => match self.collect(input, 4) {
                    false => return Progress::More,
                    true => self.client_flags(),
                },
                NegotiationState::Skipping(left) => {
                    let skipped = input.len().min(left as usize);
                    *input = &input[skipped..];
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = NegotiationState::Skipping(left);
                        return Progress::More;
                    }
                    self.state = NegotiationState::Option;
                    Progress::More
                }
                NegotiationState::Option => match self.option(export, input, out) {
                    None => return Progress::More,
                    Some(progress) => progress,
                },
            };
            if progress != Progress::More {
                return progress;
            }
        }
    }

    /// Moves bytes from `input` to `partial` until `partial` has `count` bytes. Returns false if
    /// too few bytes have arrived.
    fn collect(&mut self, input: &mut &[u8], count: usize) -> bool {
        let wanted = count.saturating_sub(self.partial.len()).min(input.len());
        let (taken, rest) = input.split_at(wanted);
        self.partial.extend_from_slice(taken);
        *input = rest;
        self.partial.len() >= count
    }

    fn client_flags(&mut self) -> Progress {
        let flags = Reader(&self.partial).u32().expect("four bytes were collected");
        self.partial.clear();
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return Progress::Close(format!(
                "the client sent the unknown handshake flags {flags:#x}"
            ));
        }
        // A client without the fixed negotiation can only send `NBD_OPT_EXPORT_NAME`.
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.state = NegotiationState::Option;
        Progress::More
    }

    /// Handles one option. `None` if some of its bytes are missing.
    fn option(
        &mut self,
        export: &Export,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Progress> {
        if !self.collect(input, wire::OPTION_HEADER_BYTES) {
            return None;
        }
        let mut reader = Reader(&self.partial);
        let (magic, code, length) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if magic != wire::OPTION_MAGIC {
            return Some(Progress::Close(
                "the client does not use NBD's newstyle negotiation".into(),
            ));
        }
        if length > limits::MAX_OPTION_BYTES {
            self.partial.clear();
            return Some(self.refuse_long(code, length, out));
        }
        if !self.collect(input, wire::OPTION_HEADER_BYTES + length as usize) {
            return None;
        }
        self.options += 1;
        if self.options > limits::MAX_OPTIONS {
            return Some(Progress::Close("the client sent too many options".into()));
        }
        let partial = std::mem::take(&mut self.partial);
        let progress = self.complete(export, code, &partial[wire::OPTION_HEADER_BYTES..], out);
        self.partial = partial;
        self.partial.clear();
        Some(progress)
    }

    fn refuse_long(&mut self, code: u32, length: u32, out: &mut Vec<u8>) -> Progress {
        if code == option::EXPORT_NAME {
            return Progress::Close(format!(
                "the client requested an export name of {length} bytes"
            ));
        }
        answer(out, code, reply::ERR_TOO_BIG, b"the option is too long");
        self.state = NegotiationState::Skipping(length);
        Progress::More
    }

    /// Handles a complete option.
    fn complete(&mut self, export: &Export, code: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        match code {
            option::EXPORT_NAME => return self.export_name(export, data, out),
            option::ABORT => {
                answer(out, code, reply::ACK, b"");
                return Progress::Close(String::new());
            }
            option::LIST if data.is_empty() => {
                let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
                entry.extend(export.name.as_bytes());
                entry.extend(export.description.as_bytes());
                answer(out, code, reply::SERVER, &entry);
                answer(out, code, reply::ACK, b"");
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.agreement.structured = true;
                answer(out, code, reply::ACK, b"");
            }
            option::LIST | option::STRUCTURED_REPLY => {
                answer(out, code, reply::ERR_INVALID, b"the option takes no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(export, code, data, out);
            }
            option::INFO | option::GO => return self.info(export, code, data, out),
            _ => answer(out, code, reply::ERR_UNSUP, b"the option is not supported"),
        }
        Progress::More
    }

    /// Lists the metadata contexts, or selects those that the client requests.
    fn contexts(&mut self, export: &Export, code: u32, data: &[u8], out: &mut Vec<u8>) {
        let chooses = code == option::SET_META_CONTEXT;
        // A new selection cancels the earlier selection, even if the new one fails.
        self.agreement.allocation &= !chooses;
        if !self.agreement.structured {
            return answer(
                out,
                code,
                reply::ERR_INVALID,
                b"metadata contexts require structured replies",
            );
        }
        let Some(question) = Question::parse(data) else {
            return answer(out, code, reply::ERR_INVALID, b"the option's data is malformed");
        };
        if !export.is_called(question.export) {
            return answer(out, code, reply::ERR_UNKNOWN, b"the server has no export of this name");
        }
        if chooses {
            self.agreement.allocation = question.chooses_allocation();
        }
        if self.agreement.allocation && chooses || !chooses && question.lists_allocation() {
            let mut item = contexts::ALLOCATION_ID.to_be_bytes().to_vec();
            item.extend(contexts::ALLOCATION);
            answer(out, code, reply::META_CONTEXT, &item);
        }
        answer(out, code, reply::ACK, b"");
    }

    /// Handles `NBD_OPT_EXPORT_NAME`, the old option to choose an export. The protocol has no error
    /// answer to this option, so the server closes the connection if the name is unknown.
    fn export_name(&self, export: &Export, name: &[u8], out: &mut Vec<u8>) -> Progress {
        if !export.is_called(name) {
            let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
            return Progress::Close(format!("the server has no export {name:?}"));
        }
        let flags = export.flags(self.agreement.structured);
        out.extend(export.geometry.capacity_bytes().to_be_bytes());
        out.extend(flags.to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + wire::EXPORT_NAME_PADDING_BYTES, 0);
        }
        Progress::Done(Agreement { knows_block_sizes: false, ..self.agreement })
    }

    fn info(&mut self, export: &Export, code: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let Some((name, wanted)) = parse_info(data) else {
            answer(out, code, reply::ERR_INVALID, b"the option's data is malformed");
            return Progress::More;
        };
        if !export.is_called(name) {
            answer(out, code, reply::ERR_UNKNOWN, b"the server has no export of this name");
            return Progress::More;
        }
        let mut item = info::EXPORT.to_be_bytes().to_vec();
        item.extend(export.geometry.capacity_bytes().to_be_bytes());
        item.extend(export.flags(self.agreement.structured).to_be_bytes());
        answer(out, code, reply::INFO, &item);
        let wants = |kind: u16| wanted.chunks_exact(2).any(|pair| pair == kind.to_be_bytes());
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if wants(kind) {
                let mut item = kind.to_be_bytes().to_vec();
                item.extend(text.as_bytes());
                answer(out, code, reply::INFO, &item);
            }
        }
        // A client that does not query the block sizes does not know them. So the server accepts
        // requests of any size from it.
        let knows_block_sizes = wants(info::BLOCK_SIZE);
        if knows_block_sizes {
            let mut item = info::BLOCK_SIZE.to_be_bytes().to_vec();
            export.block_sizes().iter().for_each(|size| item.extend(size.to_be_bytes()));
            answer(out, code, reply::INFO, &item);
        }
        answer(out, code, reply::ACK, b"");
        // NBD_OPT_INFO only queries the export; the negotiation continues. NBD_OPT_GO ends it.
        if code == option::INFO {
            return Progress::More;
        }
        Progress::Done(Agreement { knows_block_sizes, ..self.agreement })
    }
}

/// Parses the name and the list of information types of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut reader = Reader(data);
    let length = reader.u32()? as usize;
    let name = reader.bytes(length).filter(|name| name.len() <= wire::MAX_STRING_BYTES)?;
    let count = usize::from(reader.u16()?);
    let wanted = reader.bytes(count * 2)?;
    reader.0.is_empty().then_some((name, wanted))
}

fn answer(out: &mut Vec<u8>, option: u32, reply: u32, data: &[u8]) {
    out.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_random::Random;

    fn export() -> Export {
        Export {
            name: "disk".into(),
            description: "a disk".into(),
            geometry: Geometry::new(4096, 256),
        }
    }

    fn option(code: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(code.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Passes `input` to a negotiation in pieces whose sizes cycle through `sizes`. Returns the
    /// answers, the outcome and the unread input.
    fn negotiate(input: &[u8], sizes: &[usize]) -> (Vec<u8>, Progress, Vec<u8>) {
        let mut out = Vec::new();
        let mut negotiation = Negotiation::start(&mut out);
        let (mut at, mut sizes) = (0, sizes.iter().cycle());
        while at < input.len() {
            let end = (at + sizes.next().expect("a cycle")).min(input.len());
            let mut piece = &input[at..end];
            let progress = negotiation.handle(&export(), &mut piece, &mut out);
            assert!(negotiation.partial.len() <= limits::MAX_OPTION_BYTES as usize + 16);
            if progress != Progress::More {
                return (out, progress, [piece, &input[end..]].concat());
            }
            assert!(
                piece.is_empty(),
                "a negotiation that needs more bytes must consume all received bytes"
            );
            at = end;
        }
        (out, Progress::More, Vec::new())
    }

    #[test]
    fn a_negotiation_may_arrive_in_pieces_of_any_size() {
        let mut input = 3_u32.to_be_bytes().to_vec();
        input.extend(option(option::LIST, b""));
        input.extend(option(4242, &[7; 20_000]));
        input.extend(option(option::STRUCTURED_REPLY, b""));
        input.extend(option(option::GO, b"\0\0\0\x04disk\0\x01\0\x03"));
        input.extend(b"the first request");
        let whole = negotiate(&input, &[usize::MAX]);
        let agreement =
            Agreement { structured: true, knows_block_sizes: true, ..Agreement::default() };
        assert_eq!(whole.1, Progress::Done(agreement));
        assert_eq!(whole.2, b"the first request");
        for sizes in [&[1][..], &[2, 3], &[17], &[16, 5000], &[4, 16, 0, 999]] {
            assert!(negotiate(&input, sizes) == whole, "{sizes:?}");
        }
    }

    /// Random bytes after every prefix of a valid negotiation cause no panic, and the server sends
    /// no more answers than the client sent options.
    #[test]
    fn random_bytes_in_a_negotiation_do_not_panic() {
        let mut good = 3_u32.to_be_bytes().to_vec();
        for code in [option::LIST, option::INFO, option::STRUCTURED_REPLY, 9, 4242] {
            good.extend(option(code, b"\0\0\0\0\0\0"));
        }
        let mut random = Random::new(1);
        for cut in 0..good.len() {
            let mut input = good[..cut].to_vec();
            for _ in 0..500 {
                // Most bytes are zero, so that lengths are short and sometimes valid.
                input.push(if random.one_in(4) { random.bits() as u8 } else { 0 });
            }
            let (out, progress, _) = negotiate(&input, &[100]);
            assert!(out.len() < 2000, "the server sent {} bytes of answers", out.len());
            assert!(
                !matches!(progress, Progress::Done(_)),
                "the negotiation completed without a chosen export"
            );
        }
    }

    #[test]
    fn the_number_of_negotiation_options_is_limited() {
        let mut input = 3_u32.to_be_bytes().to_vec();
        (0..300).for_each(|_| input.extend(option(option::LIST, b"")));
        let (_, progress, _) = negotiate(&input, &[usize::MAX]);
        assert!(matches!(progress, Progress::Close(reason) if reason.contains("too many options")));
    }
}
