//! A session with one virtual machine monitor: handles its messages from connection to
//! disconnection.
//!
//! ```text
//! a ring:  Stopped ──enabled, with size, addresses and kick descriptor──> Running
//!             └<──monitor gets its base, disables it, or sets a new kick──┘
//! ```

use super::blk::{self, feature};
use super::device::Device;
use super::inflight::{self, Inflight};
use super::limits;
use super::memory::Memory;
use super::ring::Setup;
use super::server::DeviceShared;
use super::wire::{self, F_PROTOCOL_FEATURES, Fields, Message, code, protocol};
use super::worker::Order;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

/// The settings that the monitor sent for a ring.
#[derive(Default)]
struct RingState {
    size: u16,
    /// The addresses of the descriptors, the available ring and the used ring, in the monitor's
    /// process.
    addresses: Option<[u64; 3]>,
    /// The index of the next available chain, while the ring is stopped.
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    enabled: bool,
    runs: bool,
}

enum Answer {
    /// Nothing, or only an acknowledgement if the monitor requested one.
    None,
    Body(Vec<u8>),
    File(Vec<u8>, OwnedFd),
}

/// A monitor's session.
pub(super) struct Session<'a> {
    shared: &'a DeviceShared,
    device: &'a Device,
    stream: &'a UnixStream,
    /// The device features that the driver chose.
    features: u64,
    /// The protocol features that the monitor chose.
    protocol: u64,
    memory: Option<Memory>,
    inflight: Option<Inflight>,
    rings: Vec<RingState>,
}

impl<'a> Session<'a> {
    pub(super) fn new(shared: &'a DeviceShared, stream: &'a UnixStream) -> Session<'a> {
        let device = &shared.device;
        device.reset();
        Session {
            shared,
            device,
            stream,
            features: 0,
            protocol: 0,
            memory: None,
            inflight: None,
            rings: (0..device.queues).map(|_| RingState::default()).collect(),
        }
    }

    /// Serves the monitor until it disconnects or breaks the protocol.
    pub(super) fn run(&mut self) -> io::Result<()> {
        while let Some(message) = wire::receive(self.stream)? {
            let (code, need_reply) = (message.code, message.need_reply);
            let wants_ack = need_reply && self.protocol & protocol::REPLY_ACK != 0;
            match self.handle(message) {
                Ok(Answer::None) if wants_ack => {
                    wire::reply(self.stream, code, &0_u64.to_le_bytes(), None)?;
                }
                Ok(Answer::None) => {}
                Ok(Answer::Body(body)) => wire::reply(self.stream, code, &body, None)?,
                Ok(Answer::File(body, file)) => {
                    wire::reply(self.stream, code, &body, Some(file.as_fd()))?;
                }
                Err(why) if wants_ack => {
                    self.shared.complaints.say("monitors' requests refused", "", || {
                        tracing::warn!(code, "refused a monitor's request: {why}");
                    });
                    wire::reply(self.stream, code, &1_u64.to_le_bytes(), None)?;
                }
                Err(why) => {
                    let text = format!("the monitor's request {code} is invalid: {why}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<Answer, String> {
        let Message { code, body, mut descriptors, .. } = message;
        let mut fields = Fields(&body);
        match code {
            code::SET_OWNER => {}
            code::RESET_OWNER => self.halt_all()?,
            code::GET_FEATURES => return Ok(number(self.offered())),
            code::SET_FEATURES => self.set_features(fields.u64()?)?,
            code::GET_PROTOCOL_FEATURES => return Ok(number(protocol::ALL)),
            code::SET_PROTOCOL_FEATURES => self.protocol = fields.u64()? & protocol::ALL,
            code::GET_QUEUE_NUM => return Ok(number(self.device.queues as u64)),
            code::SET_MEM_TABLE => self.set_memory(Memory::map(&body, descriptors)?)?,
            code::GET_MAX_MEM_SLOTS => return Ok(number(limits::MAX_SLOTS as u64)),
            code::ADD_MEM_REG => {
                let file = descriptors.pop().ok_or("the message has no file descriptor")?;
                let none = Memory::empty();
                self.set_memory(self.memory.as_ref().unwrap_or(&none).with(&body, file)?)?;
            }
            code::REM_MEM_REG => {
                let memory = self.memory.as_ref().ok_or("the guest has no memory regions")?;
                self.set_memory(memory.without(&body)?)?;
            }
            code::SET_VRING_NUM..=code::SET_VRING_ERR | code::SET_VRING_ENABLE => {
                return self.handle_ring(code, &mut fields, descriptors.pop());
            }
            code::SET_BACKEND_REQ_FD => self.set_channel(descriptors.pop())?,
            code::GET_CONFIG => return self.config(fields.u32()?, fields.u32()?, fields.u32()?),
            code::SET_CONFIG => {
                let (offset, length, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
                self.set_config(offset, length, fields.0)?;
            }
            code::GET_INFLIGHT_FD => {
                let _ = (fields.u64()?, fields.u64()?);
                return self.make_inflight(fields.u16()?, fields.u16()?, body.len());
            }
            code::SET_INFLIGHT_FD => {
                let (bytes, offset) = (fields.u64()?, fields.u64()?);
                let file = descriptors.pop().ok_or("the message has no file descriptor")?;
                let (queues, size) = (fields.u16()?, fields.u16()?);
                let adopted = Inflight::adopt(file.into(), offset, bytes, queues, size)?;
                self.inflight = Some(adopted);
            }
            _ => return Err("the server does not know this request".to_owned()),
        }
        Ok(Answer::None)
    }

    /// Handles a message about one ring.
    fn handle_ring(
        &mut self,
        code: u32,
        fields: &mut Fields<'_>,
        descriptor: Option<OwnedFd>,
    ) -> Result<Answer, String> {
        match code {
            code::SET_VRING_NUM => {
                let (ring, size) = self.still(fields.u32()?, fields.u32()?)?;
                let size = u16::try_from(size).unwrap_or(0);
                if !size.is_power_of_two() || size > limits::MAX_QUEUE_SIZE {
                    return Err(format!("a ring cannot have {size} descriptors"));
                }
                ring.size = size;
            }
            code::SET_VRING_ADDR => {
                let (ring, flags) = self.still(fields.u32()?, fields.u32()?)?;
                if flags != 0 {
                    return Err("the server does not support logging of writes".to_owned());
                }
                let (table, used) = (fields.u64()?, fields.u64()?);
                ring.addresses = Some([table, fields.u64()?, used]);
            }
            code::SET_VRING_BASE => {
                let (ring, base) = self.still(fields.u32()?, fields.u32()?)?;
                ring.base = base as u16;
            }
            code::GET_VRING_BASE => {
                let index = self.index(fields.u32()?)?;
                self.halt(index)?;
                // The ring starts again only when the monitor sends a new eventfd for kicks
                // (notifications).
                self.rings[index].kick = None;
                let mut body = (index as u32).to_le_bytes().to_vec();
                body.extend(u32::from(self.rings[index].base).to_le_bytes());
                return Ok(Answer::Body(body));
            }
            code::SET_VRING_KICK => {
                let (index, kick) = self.event(fields.u64()?, descriptor)?;
                let kick = kick.ok_or("the server does not poll rings: send a kick descriptor")?;
                self.halt(index)?;
                self.rings[index].kick = Some(kick);
                self.try_run(index)?;
            }
            code::SET_VRING_CALL => {
                let (index, call) = self.event(fields.u64()?, descriptor)?;
                self.set_call(index, call)?;
            }
            code::SET_VRING_ERR => {
                let (index, error) = self.event(fields.u64()?, descriptor)?;
                self.rings[index].error = error;
            }
            code::SET_VRING_ENABLE => self.enable(fields.u32()?, fields.u32()?)?,
            _ => return Err("the server does not know this request".to_owned()),
        }
        Ok(Answer::None)
    }

    fn offered(&self) -> u64 {
        self.device.features() | F_PROTOCOL_FEATURES
    }

    fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !self.offered();
        // If the disk's properties have changed since the server offered features, the driver may
        // choose a feature that the server no longer offers.
        if unknown & !(feature::DISCARD | feature::RO | feature::TOPOLOGY) != 0 {
            return Err(format!("the server does not offer the features {unknown:#x}"));
        }
        self.features = features;
        if features & feature::FLUSH == 0 {
            // A driver that cannot flush expects completed writes to be durable.
            self.device.set_writeback(false);
        }
        Ok(())
    }

    fn index(&self, index: u32) -> Result<usize, String> {
        let found = usize::try_from(index).ok().filter(|&index| index < self.rings.len());
        found.ok_or_else(|| {
            format!("ring {index} does not exist: there are {} rings", self.rings.len())
        })
    }

    /// Fails if the ring runs, because its settings may change only while it is stopped. Otherwise
    /// returns the ring and `value`.
    fn still(&mut self, index: u32, value: u32) -> Result<(&mut RingState, u32), String> {
        let index = self.index(index)?;
        if self.rings[index].runs {
            return Err(format!("ring {index} is running"));
        }
        Ok((&mut self.rings[index], value))
    }

    /// Parses a message with a ring's index and an optional eventfd.
    fn event(
        &self,
        value: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<(usize, Option<OwnedFd>), String> {
        const NONE: u64 = 1 << 8;
        let index = self.index((value & 0xff) as u32)?;
        if (value & NONE != 0) == descriptor.is_some() {
            return Err("the message does not have exactly one descriptor".to_owned());
        }
        if let Some(descriptor) = &descriptor
            && !is_event(descriptor)
        {
            return Err("the descriptor is not an eventfd".to_owned());
        }
        Ok((index, descriptor))
    }

    fn set_memory(&mut self, memory: Memory) -> Result<(), String> {
        for index in 0..self.rings.len() {
            if self.rings[index].runs {
                let (sender, receiver) = mpsc::channel();
                self.post(index, Order::Memory(Arc::clone(&memory.guest), sender));
                self.shared.wait_for(&receiver)?;
            }
        }
        self.memory = Some(memory);
        Ok(())
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) -> Result<(), String> {
        let ring = &mut self.rings[index];
        ring.call = call;
        if ring.runs {
            let copy = copy_of(&ring.call)?;
            self.post(index, Order::Call(copy));
        }
        Ok(())
    }

    fn enable(&mut self, index: u32, enabled: u32) -> Result<(), String> {
        let index = self.index(index)?;
        self.rings[index].enabled = enabled != 0;
        if enabled == 0 { self.halt(index) } else { self.try_run(index) }
    }

    fn set_channel(&mut self, channel: Option<OwnedFd>) -> Result<(), String> {
        let channel = UnixStream::from(channel.ok_or("the message has no descriptor")?);
        channel
            .set_write_timeout(Some(limits::NOTICE_TIMEOUT))
            .map_err(|error| format!("the channel is not a socket: {error}"))?;
        self.shared.set_channel(Some(channel));
        Ok(())
    }

    fn config(&self, offset: u32, length: u32, flags: u32) -> Result<Answer, String> {
        let end = offset.checked_add(length).filter(|&end| end <= limits::MAX_CONFIG_BYTES);
        end.ok_or("the range exceeds the configuration space")?;
        let part = blk::config_part(&self.device.config_space(), offset, length);
        let mut body = Vec::with_capacity(12 + part.len());
        [offset, length, flags].iter().for_each(|word| body.extend(word.to_le_bytes()));
        body.extend(part);
        Ok(Answer::Body(body))
    }

    fn set_config(&mut self, offset: u32, length: u32, data: &[u8]) -> Result<(), String> {
        match (offset, length, data) {
            (blk::WRITEBACK_OFFSET, 1, &[writeback]) => {
                self.device.set_writeback(writeback != 0);
                Ok(())
            }
            _ => Err("only the cache mode can be set".to_owned()),
        }
    }

    /// Creates empty in-flight records. Pads the answer to the length of the request: QEMU and
    /// Cloud Hypervisor pad this message differently.
    fn make_inflight(&mut self, queues: u16, size: u16, length: usize) -> Result<Answer, String> {
        if usize::from(queues) > limits::MAX_QUEUES || size > limits::MAX_QUEUE_SIZE {
            return Err(format!("{queues} rings of {size} descriptors exceed the limit"));
        }
        let (inflight, file) = Inflight::create(queues, size).map_err(|e| e.to_string())?;
        self.inflight = Some(inflight);
        let mut body = inflight::total_bytes(queues, size).to_le_bytes().to_vec();
        body.extend(0_u64.to_le_bytes());
        body.extend(queues.to_le_bytes());
        body.extend(size.to_le_bytes());
        body.resize(length, 0);
        Ok(Answer::File(body, file.into()))
    }

    fn post(&self, index: usize, order: Order) {
        self.shared.post(index, order);
    }

    /// Starts a ring if its settings are complete.
    fn try_run(&mut self, index: usize) -> Result<(), String> {
        let ring = &self.rings[index];
        let enabled = ring.enabled || self.features & F_PROTOCOL_FEATURES == 0;
        if ring.runs || !enabled || ring.size == 0 {
            return Ok(());
        }
        let (Some(memory), Some(addresses), Some(kick)) =
            (&self.memory, ring.addresses, &ring.kick)
        else {
            return Ok(());
        };
        let queue = self.queue(ring, memory, addresses)?;
        let notes = self.inflight.as_ref().map(|notes| notes.queue(index, ring.size));
        let setup = Setup {
            guest: Arc::clone(&memory.guest),
            queue,
            indirect: self.features & feature::INDIRECT_DESC != 0,
            notes: notes.transpose()?,
            kick: kick.try_clone().map_err(|error| error.to_string())?,
            call: copy_of(&ring.call)?,
            error: copy_of(&ring.error)?,
        };
        let (sender, receiver) = mpsc::channel();
        self.post(index, Order::Run(Box::new(setup), sender));
        self.shared.wait_for(&receiver)??;
        self.rings[index].runs = true;
        Ok(())
    }

    fn queue(&self, ring: &RingState, memory: &Memory, at: [u64; 3]) -> Result<Queue, String> {
        let place = |address: u64| {
            let found = memory.translate(address);
            found.ok_or_else(|| format!("the ring address {address:#x} is in no memory region"))
        };
        let build = |[descriptors, available, used]: [GuestAddress; 3]| {
            let mut queue = Queue::new(ring.size)?;
            queue.try_set_size(ring.size)?;
            queue.try_set_desc_table_address(descriptors)?;
            queue.try_set_avail_ring_address(available)?;
            queue.try_set_used_ring_address(used)?;
            Ok(queue)
        };
        let places = [place(at[0])?, place(at[1])?, place(at[2])?];
        let mut queue = build(places).map_err(|e: virtio_queue::Error| e.to_string())?;
        queue.set_event_idx(self.features & feature::EVENT_IDX != 0);
        queue.set_next_avail(ring.base);
        queue.set_ready(true);
        if !queue.is_valid(&memory.guest.map) {
            return Err("the ring is not completely in the guest's memory".to_owned());
        }
        Ok(queue)
    }

    /// Stops a ring, and waits for the requests that its worker has taken.
    fn halt(&mut self, index: usize) -> Result<(), String> {
        if self.rings[index].runs {
            let (sender, receiver) = mpsc::channel();
            self.post(index, Order::Halt(sender));
            let base = self.shared.wait_for(&receiver)?;
            let ring = &mut self.rings[index];
            (ring.base, ring.runs) = (base.unwrap_or(ring.base), false);
        }
        Ok(())
    }

    fn halt_all(&mut self) -> Result<(), String> {
        (0..self.rings.len()).try_for_each(|index| self.halt(index))
    }

    /// Ends the session. If the server is stopping, first answers the guest's requests. Otherwise
    /// the monitor has disconnected, and this process must not access the guest's memory.
    pub(super) fn end(mut self) {
        self.shared.set_channel(None);
        if self.shared.is_stopping() {
            // Requests that do not finish in time stay in the in-flight records for the next
            // server.
            let _ = self.halt_all();
        }
        let left: Vec<_> = (0..self.rings.len())
            .filter(|&index| self.rings[index].runs)
            .map(|index| {
                let (sender, receiver) = mpsc::channel();
                self.post(index, Order::Leave(sender));
                receiver
            })
            .collect();
        left.iter().for_each(|receiver| drop(self.shared.wait_for(receiver)));
    }
}

fn number(value: u64) -> Answer {
    Answer::Body(value.to_le_bytes().to_vec())
}

fn copy_of(descriptor: &Option<OwnedFd>) -> Result<Option<OwnedFd>, String> {
    let copy = descriptor.as_ref().map(OwnedFd::try_clone).transpose();
    copy.map_err(|error| error.to_string())
}

/// True for an eventfd. Any other file might always be readable, or block a write.
fn is_event(descriptor: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}
