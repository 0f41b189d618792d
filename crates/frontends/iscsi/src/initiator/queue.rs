//! A queue on an event loop that sends commands over a session, and receives the answers.

use super::session::{Agreed, Numbers, SEGMENT_BYTES, Session, command};
use crate::scsi::sense;
use crate::wire::{
    self, BHS_BYTES, Bhs, DataIn, DataOut, R2t, Response, ScsiResponse, flag, request, response,
};
use farblock_block::{BlockError, Command, Completion, Geometry, Op, Queue};
use farblock_reactor::{Event, Reactor, SendBatch, StreamId, TaskId};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

pub(super) struct SessionQueue {
    geometry: Geometry,
    agreed: Agreed,
    numbers: Numbers,
    lun: u64,
    reactor: Reactor,
    task: TaskId,
    stream: StreamId,
    events: Vec<Event>,
    /// The operations in flight, by task tag.
    flights: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Operations that wait for a free tag or for the target's command window.
    waiting: VecDeque<Op>,
    done: Vec<Completion>,
    /// The pending output; `None` while the reactor sends it.
    batch: Option<SendBatch>,
    /// Answers to R2Ts and pings. The queue sends them before the next commands.
    later: Vec<u8>,
    parser: Parser,
    is_lost: bool,
}

/// The PDU that is arriving.
struct Parser {
    bhs: Bhs,
    /// The number of header bytes that have arrived.
    have: usize,
    /// The number of data bytes that have not arrived.
    data_left: usize,
    padding_left: usize,
    /// The task tag of the arriving data, and the offset in the task's buffer. `None`: the queue
    /// discards the data.
    into: Option<(u32, usize)>,
}

/// An invalid PDU from the target.
struct Nonsense;

impl SessionQueue {
    pub(super) fn new(
        session: Session,
        geometry: Geometry,
        depth: usize,
        reactor: &Reactor,
        parent: TaskId,
    ) -> Result<SessionQueue, BlockError> {
        let Session { stream, agreed, numbers, lun } = session;
        let task = reactor.add_child(parent);
        let Ok(stream) = reactor.add_stream(task, stream) else {
            reactor.remove_task(task);
            return Err(BlockError::NoResources);
        };
        reactor.recv(stream);
        Ok(SessionQueue {
            geometry,
            agreed,
            numbers,
            lun,
            reactor: reactor.clone(),
            task,
            stream,
            events: Vec::new(),
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth as u32).collect(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            batch: Some(SendBatch::new()),
            later: Vec::new(),
            parser: Parser {
                bhs: [0; BHS_BYTES],
                have: 0,
                data_left: 0,
                padding_left: 0,
                into: None,
            },
            is_lost: false,
        })
    }

    /// The result of an operation that needs no command, because it is invalid or empty. `None` if
    /// it needs one.
    fn known(&self, op: &Op) -> Option<Result<(), BlockError>> {
        if let Err(error) = op.check(&self.geometry) {
            return Some(Err(error));
        }
        match op.command {
            _ if self.is_lost => Some(Err(BlockError::Disconnected)),
            Command::WriteZeroes { .. } => Some(Err(BlockError::Unsupported)),
            Command::Deallocate => Some(Ok(())),
            Command::Read | Command::Write if op.blocks == 0 => Some(Ok(())),
            _ => None,
        }
    }

    /// Sends waiting operations, as far as the target's command window has room.
    fn begin(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        batch.bytes(&self.later);
        self.later.clear();
        while let Some(&tag) = self.free.last()
            && self.numbers.is_open()
            && let Some(op) = self.waiting.pop_front()
        {
            self.free.pop();
            let data = op.buffer.as_deref().unwrap_or_default();
            let (code, direction, along) = match op.command {
                Command::Read => (0x88, flag::READ, 0),
                Command::Write => {
                    (0x8a, flag::WRITE, data.len().min(self.agreed.first_bytes as usize))
                }
                _ => (0x91, 0, 0), // SYNCHRONIZE CACHE (16), of all blocks
            };
            let mut cdb = [0; 16];
            cdb[0] = code;
            if direction != 0 {
                cdb[1] = if op.fua && op.command == Command::Write { 8 } else { 0 };
                cdb[2..10].copy_from_slice(&op.lba.to_be_bytes());
                cdb[10..14].copy_from_slice(&op.blocks.to_be_bytes());
            }
            let expected = data.len() as u32;
            let numbers = &mut self.numbers;
            let ask = command(cdb, direction, expected, along, self.lun, numbers, tag);
            batch.bytes(ask.as_bytes());
            // The protocol pads data segments to a multiple of four bytes, which `along` already
            // is.
            batch.bytes(&data[..along]);
            self.flights[tag as usize] = Some(op);
        }
        if !batch.is_empty() {
            let batch = self.batch.take().expect("the reactor is not sending the batch");
            self.reactor.send(self.stream, batch);
        }
    }

    fn handle_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.take_events(self.task, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Received { result: Ok(bytes), .. } if !bytes.is_empty() => {
                    if self.is_lost {
                        continue;
                    }
                    match self.parse(&bytes) {
                        Ok(()) => self.reactor.recv(self.stream),
                        Err(Nonsense) => self.lose(),
                    }
                }
                Event::Received { .. } => self.lose(),
                Event::Sent { mut batch, result, .. } => {
                    batch.clear();
                    self.batch.get_or_insert(batch);
                    if result.is_err() {
                        self.lose();
                    }
                }
                _ => {}
            }
        }
        self.events = events;
    }

    fn parse(&mut self, mut bytes: &[u8]) -> Result<(), Nonsense> {
        while !bytes.is_empty() {
            let parser = &mut self.parser;
            if parser.have < BHS_BYTES {
                let part = bytes.len().min(BHS_BYTES - parser.have);
                parser.bhs[parser.have..parser.have + part].copy_from_slice(&bytes[..part]);
                parser.have += part;
                bytes = &bytes[part..];
                if parser.have < BHS_BYTES {
                    return Ok(());
                }
                self.begin_data()?;
            }
            bytes = self.take_data(bytes);
            let parser = &mut self.parser;
            if parser.data_left == 0 && parser.padding_left == 0 {
                parser.have = 0;
                self.pdu()?;
            }
        }
        Ok(())
    }

    /// Finds where the data of the arriving PDU belongs, once its header has arrived.
    fn begin_data(&mut self) -> Result<(), Nonsense> {
        let parser = &mut self.parser;
        let length = wire::data_bytes(&parser.bhs) as usize;
        if length > SEGMENT_BYTES as usize || parser.bhs[4] != 0 {
            return Err(Nonsense);
        }
        (parser.data_left, parser.padding_left) = (length, wire::padding(length));
        parser.into = None;
        if parser.bhs[0] == response::DATA_IN && length > 0 {
            let part: DataIn = wire::view(&parser.bhs);
            let (tag, at) = (part.task_tag.get(), part.offset.get() as usize);
            let flight = self.flights.get(tag as usize).and_then(Option::as_ref);
            let reads = flight.filter(|op| op.command.reads()).ok_or(Nonsense)?;
            let room = reads.buffer.as_ref().map_or(0, |buffer| buffer.len());
            if at.checked_add(length).is_none_or(|end| end > room) {
                return Err(Nonsense);
            }
            parser.into = Some((tag, at));
        }
        Ok(())
    }

    fn take_data<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let parser = &mut self.parser;
        let (data, bytes) = bytes.split_at(bytes.len().min(parser.data_left));
        parser.data_left -= data.len();
        if let Some((tag, at)) = &mut parser.into
            && let Some(Some(op)) = self.flights.get_mut(*tag as usize)
            && let Some(buffer) = &mut op.buffer
        {
            buffer[*at..*at + data.len()].copy_from_slice(data);
            *at += data.len();
        }
        if parser.data_left > 0 {
            return bytes;
        }
        let padding = bytes.len().min(parser.padding_left);
        parser.padding_left -= padding;
        &bytes[padding..]
    }

    /// Handles a complete PDU.
    fn pdu(&mut self) -> Result<(), Nonsense> {
        let bhs = self.parser.bhs;
        let any: Response = wire::view(&bhs);
        self.numbers.heard(any.max_cmd_sn.get());
        match bhs[0] {
            response::DATA_IN => {
                let part: DataIn = wire::view(&bhs);
                if part.flags & flag::STATUS != 0 {
                    self.numbers.status = part.stat_sn.get().wrapping_add(1);
                    self.land(part.task_tag.get(), part.status)?;
                }
                Ok(())
            }
            response::SCSI => {
                let answer: ScsiResponse = wire::view(&bhs);
                self.numbers.status = answer.stat_sn.get().wrapping_add(1);
                let status = if answer.response == 0 { answer.status } else { u8::MAX };
                self.land(answer.task_tag.get(), status)
            }
            response::R2T => self.ready_to_transfer(&wire::view(&bhs)),
            response::NOP_IN => {
                if any.target_tag != wire::NO_TAG {
                    self.pong(&any);
                }
                Ok(())
            }
            _ => Err(Nonsense),
        }
    }

    fn land(&mut self, tag: u32, status: u8) -> Result<(), Nonsense> {
        let flight = self.flights.get_mut(tag as usize).and_then(Option::take);
        let op = flight.ok_or(Nonsense)?;
        self.free.push(tag);
        let failed = match op.command {
            _ if status == sense::status::RESERVATION_CONFLICT => BlockError::Conflict,
            Command::Read => BlockError::ReadFailed,
            _ => BlockError::WriteFailed,
        };
        self.done.push(op.complete(if status == 0 { Ok(()) } else { Err(failed) }));
        Ok(())
    }

    /// Handles an R2T, with which the target requests more data of a write.
    fn ready_to_transfer(&mut self, r2t: &R2t) -> Result<(), Nonsense> {
        let flight = self.flights.get(r2t.task_tag.get() as usize).and_then(Option::as_ref);
        let op = flight.filter(|op| op.command == Command::Write).ok_or(Nonsense)?;
        let data = op.buffer.as_deref().unwrap_or_default();
        let (mut at, wanted) = (r2t.offset.get() as usize, r2t.desired_bytes.get() as usize);
        let end = at.checked_add(wanted).filter(|&end| wanted > 0 && end <= data.len());
        let end = end.ok_or(Nonsense)?;
        let mut out = Vec::with_capacity(wanted + BHS_BYTES);
        let mut data_sn = 0_u32;
        while at < end {
            let part = (end - at).min(self.agreed.segment_bytes as usize);
            let head = DataOut {
                opcode: request::DATA_OUT,
                flags: if at + part == end { flag::FINAL } else { 0 },
                data_length: wire::length(part),
                lun: r2t.lun,
                task_tag: r2t.task_tag,
                target_tag: r2t.target_tag,
                exp_stat_sn: self.numbers.status.into(),
                data_sn: data_sn.into(),
                offset: (at as u32).into(),
                ..DataOut::default()
            };
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(&data[at..at + part]);
            out.extend_from_slice(&[0; 3][..wire::padding(part)]);
            (at, data_sn) = (at + part, data_sn + 1);
        }
        self.say(&out);
        Ok(())
    }

    fn pong(&mut self, ping: &Response) {
        let mut pong = wire::AnyRequest {
            opcode: wire::IMMEDIATE | request::NOP_OUT,
            flags: flag::FINAL,
            lun: ping.lun,
            task_tag: wire::NO_TAG.into(),
            specific: ping.target_tag,
            ..wire::AnyRequest::default()
        };
        pong.cmd_sn = self.numbers.command.into();
        pong.exp_stat_sn = self.numbers.status.into();
        let bytes = pong.as_bytes().to_vec();
        self.say(&bytes);
    }

    /// Appends bytes to the next send.
    fn say(&mut self, bytes: &[u8]) {
        self.later.extend_from_slice(bytes);
    }

    /// Fails all operations, because the session is disconnected.
    fn lose(&mut self) {
        self.is_lost = true;
        let flights = self.flights.iter_mut().filter_map(Option::take);
        for op in flights.chain(self.waiting.drain(..)) {
            self.done.push(op.complete(Err(BlockError::Disconnected)));
        }
        self.free.clear();
    }
}

impl Queue for SessionQueue {
    fn submit(&mut self, op: Op) {
        match self.known(&op) {
            Some(result) => self.done.push(op.complete(result)),
            None => self.waiting.push_back(op),
        }
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        farblock_block::abandon_waiting(&mut self.waiting, unwanted, &mut self.done);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.handle_events();
        if !self.is_lost {
            self.begin();
        }
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        let in_session = self.flights.iter().flatten().count();
        self.waiting.len() + in_session + self.done.len()
    }
}

impl Drop for SessionQueue {
    fn drop(&mut self) {
        self.reactor.close(self.stream);
        self.reactor.remove_task(self.task);
        let flights = self.flights.iter_mut().filter_map(Option::take);
        flights.chain(self.waiting.drain(..)).for_each(|op| drop(op.abandon()));
    }
}
