//! Posting requests in the fabric in memory, their execution in order, and their errors.

use std::io;

use super::state::{Entry, Frees, Key, Local, Objects, QpState, Receive, Region, Send};
use crate::error::{PostError, VerbsError};
use crate::limits::RNR_RETRY_FOREVER;
use crate::request::{
    Access, Completed, Completion, Operation, Payload, ReceiveRequest, SendRequest, Status,
};

/// The result of an attempt to execute a request.
enum Attempt {
    /// The request completed with this number of bytes.
    Done(u32),
    /// The peer has posted no receive for the request.
    NotReady,
    /// The request failed at this end. The peer does not notice.
    Failed(Status),
    /// The peer refused the request. The peer's queue pair fails, too.
    Refused(Status),
}

impl Objects {
    fn post_send_one(&mut self, key: Key, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let refused = |kind| Err(VerbsError::refused("ibv_post_send", kind));
        let Some(qp) = self.qp(key).filter(|qp| qp.state != QpState::Init) else {
            return refused(io::ErrorKind::InvalidInput);
        };
        if qp.posted - qp.retired >= u64::from(qp.limits.send_wr) {
            return refused(io::ErrorKind::OutOfMemory);
        }
        let source = match request.payload {
            Payload::Registered(slices) if slices.len() <= qp.limits.send_sge as usize => {
                Local::Slices(slices.to_vec())
            }
            Payload::Inline(bytes)
                if bytes.len() <= qp.limits.inline_bytes as usize
                    && !matches!(request.operation, Operation::Read { .. }) =>
            {
                Local::Inline(bytes.to_vec())
            }
            _ => return refused(io::ErrorKind::InvalidInput),
        };
        let SendRequest { id, operation, signaled, .. } = *request;
        qp.sends.push_back(Send { id, operation, source, signaled, position: qp.posted });
        qp.posted += 1;
        self.run(key);
        Ok(())
    }

    pub(super) fn post_send(
        &mut self,
        key: Key,
        requests: &[SendRequest<'_>],
    ) -> Result<(), PostError> {
        for (posted, request) in requests.iter().enumerate() {
            self.post_send_one(key, request).map_err(|error| PostError { posted, error })?;
        }
        Ok(())
    }

    pub(super) fn post_recv(
        &mut self,
        key: Key,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        for (posted, request) in requests.iter().enumerate() {
            let refused =
                |kind| Err(PostError { posted, error: VerbsError::refused("ibv_post_recv", kind) });
            let Some(qp) = self.qp(key).filter(|qp| qp.srq.is_none()) else {
                return refused(io::ErrorKind::InvalidInput);
            };
            if request.slices.len() > qp.limits.recv_sge as usize {
                return refused(io::ErrorKind::InvalidInput);
            }
            if qp.receives_held >= qp.limits.recv_wr {
                return refused(io::ErrorKind::OutOfMemory);
            }
            qp.receives_held += 1;
            qp.receives.push_back(Receive { id: request.id, slices: request.slices.to_vec() });
            if qp.state == QpState::Error {
                self.flush(key);
            } else if let Some(peer) = self.ids.get(&key).and_then(|id| id.peer) {
                self.run(peer);
            }
        }
        Ok(())
    }

    pub(super) fn post_srq_recv(
        &mut self,
        key: Key,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        for (posted, request) in requests.iter().enumerate() {
            let refused = |kind| {
                Err(PostError { posted, error: VerbsError::refused("ibv_post_srq_recv", kind) })
            };
            let Some(srq) = self.srqs.get_mut(&key) else {
                return refused(io::ErrorKind::InvalidInput);
            };
            if request.slices.len() > srq.max_sge as usize {
                return refused(io::ErrorKind::InvalidInput);
            }
            if srq.held >= srq.capacity {
                return refused(io::ErrorKind::OutOfMemory);
            }
            srq.held += 1;
            srq.receives.push_back(Receive { id: request.id, slices: request.slices.to_vec() });
            self.wake_senders(key);
        }
        Ok(())
    }

    /// Continues the connections that wait for a receive, while the shared queue has receives.
    fn wake_senders(&mut self, key: Key) {
        while let Some(srq) = self.srqs.get_mut(&key).filter(|srq| !srq.receives.is_empty()) {
            let Some(sender) = srq.waiting.pop_front() else { return };
            self.run(sender);
        }
    }

    /// Executes the connection's requests until none remain, one must wait, or one fails.
    pub(super) fn run(&mut self, key: Key) {
        loop {
            let Some(qp) = self.qp(key) else { return };
            match qp.state {
                QpState::Init => return,
                QpState::Error => return self.flush(key),
                QpState::Ready => {}
            }
            let forever = qp.rnr_retry_count == RNR_RETRY_FOREVER;
            let Some(send) = qp.sends.pop_front() else { return };
            match self.attempt(key, &send) {
                Attempt::Done(bytes) => self.completed(key, &send, bytes),
                Attempt::NotReady if forever => {
                    if let Some(qp) = self.qp(key) {
                        qp.sends.push_front(send);
                    }
                    return;
                }
                Attempt::NotReady => self.failed(key, &send, Status::RNR_RETRY_EXC_ERR),
                Attempt::Failed(status) => self.failed(key, &send, status),
                Attempt::Refused(status) => {
                    self.failed(key, &send, status);
                    if let Some(peer) = self.ids.get(&key).and_then(|id| id.peer) {
                        self.fail(peer);
                    }
                }
            }
        }
    }

    fn attempt(&mut self, key: Key, send: &Send) -> Attempt {
        let Some(qp) = self.ids.get(&key).and_then(|id| id.qp.as_ref()) else {
            return Attempt::Failed(Status::GENERAL_ERR);
        };
        let pd = qp.pd;
        let bytes = match (&send.source, send.operation) {
            // A READ sends no data. Its slices are its destination.
            (_, Operation::Read { .. }) => Vec::new(),
            (Local::Inline(bytes), _) => bytes.clone(),
            (Local::Slices(slices), _) => match self.gather(pd, slices) {
                Ok(bytes) => bytes,
                Err(status) => return Attempt::Failed(status),
            },
        };
        let Some(peer) = self.reachable_peer(key) else {
            return Attempt::Failed(Status::RETRY_EXC_ERR);
        };
        match send.operation {
            Operation::Send => self.deliver(key, peer, &bytes, None),
            Operation::SendWithInvalidate(rkey) => self.deliver(key, peer, &bytes, Some(rkey)),
            Operation::Write { address, rkey } => self.write(peer, address, rkey, &bytes),
            Operation::Read { address, rkey } => self.read((pd, send), peer, address, rkey),
        }
    }

    /// The peer, if it can be reached and its queue pair is ready.
    fn reachable_peer(&self, key: Key) -> Option<Key> {
        let id = self.ids.get(&key)?;
        let peer = self.ids.get(&id.peer?)?;
        let is_ready = peer.qp.as_ref()?.state == QpState::Ready;
        (is_ready && self.is_reachable(id.local.ip(), peer.local.ip())).then_some(id.peer?)
    }

    /// Executes a SEND, which fills the peer's next receive.
    fn deliver(&mut self, key: Key, peer: Key, bytes: &[u8], invalidate: Option<Key>) -> Attempt {
        let Some((receive, frees)) = self.take_receive(key, peer) else {
            return Attempt::NotReady;
        };
        let Some(qp) = self.qp(peer) else { return Attempt::Failed(Status::RETRY_EXC_ERR) };
        let (pd, cq) = (qp.pd, qp.recv_cq);
        let mut completion = Completion { id: receive.id, qp_num: peer, ..Completion::default() };
        let mut result = self.scatter(pd, &receive.slices, bytes);
        if let (Ok(()), Some(rkey)) = (result, invalidate) {
            let is_open = |region: &&mut Region| region.pd == pd && region.access.is_remote();
            match self.regions.get_mut(&rkey).filter(is_open) {
                Some(region) => region.is_invalid = true,
                None => result = Err(Status::LOC_ACCESS_ERR),
            }
        }
        match result {
            Ok(()) => {
                completion.operation = Completed::Receive;
                completion.bytes = bytes.len() as u32;
                completion.invalidated = invalidate;
                self.complete(cq, Entry { completion, frees });
                Attempt::Done(bytes.len() as u32)
            }
            Err(status) => {
                completion.status = status;
                self.complete(cq, Entry { completion, frees });
                Attempt::Refused(match status {
                    Status::LOC_LEN_ERR => Status::REM_INV_REQ_ERR,
                    Status::LOC_ACCESS_ERR => Status::REM_ACCESS_ERR,
                    _ => Status::REM_OP_ERR,
                })
            }
        }
    }

    fn take_receive(&mut self, key: Key, peer: Key) -> Option<(Receive, Frees)> {
        let qp = self.qp(peer)?;
        let Some(shared) = qp.srq else {
            return Some((qp.receives.pop_front()?, Frees::Receive { id: peer }));
        };
        let srq = self.srqs.get_mut(&shared)?;
        let receive = srq.receives.pop_front();
        if receive.is_none() && !srq.waiting.contains(&key) {
            srq.waiting.push_back(key);
        }
        Some((receive?, Frees::Shared { srq: shared }))
    }

    fn write(&mut self, peer: Key, address: u64, rkey: Key, bytes: &[u8]) -> Attempt {
        if bytes.is_empty() {
            return Attempt::Done(0);
        }
        let Some(pd) = self.qp(peer).map(|qp| qp.pd) else {
            return Attempt::Failed(Status::RETRY_EXC_ERR);
        };
        match self.region(pd, rkey, address, bytes.len(), Access::REMOTE_WRITE) {
            Some((region, offset)) => {
                region.write(offset, bytes);
                Attempt::Done(bytes.len() as u32)
            }
            None => Attempt::Refused(Status::REM_ACCESS_ERR),
        }
    }

    fn read(&mut self, (pd, send): (Key, &Send), peer: Key, address: u64, rkey: Key) -> Attempt {
        let Local::Slices(slices) = &send.source else {
            return Attempt::Failed(Status::LOC_QP_OP_ERR);
        };
        let room: usize = slices.iter().map(|slice| slice.bytes as usize).sum();
        if room == 0 {
            return Attempt::Done(0);
        }
        let Some(peer_pd) = self.qp(peer).map(|qp| qp.pd) else {
            return Attempt::Failed(Status::RETRY_EXC_ERR);
        };
        let found = self.region(peer_pd, rkey, address, room, Access::REMOTE_READ);
        let Some((region, offset)) = found else {
            return Attempt::Refused(Status::REM_ACCESS_ERR);
        };
        let mut bytes = Vec::new();
        region.read(offset, room, &mut bytes);
        match self.scatter(pd, slices, &bytes) {
            Ok(()) => Attempt::Done(room as u32),
            Err(status) => Attempt::Failed(status),
        }
    }

    fn completed(&mut self, key: Key, send: &Send, bytes: u32) {
        if !send.signaled {
            return;
        }
        let operation = match send.operation {
            Operation::Send | Operation::SendWithInvalidate(_) => Completed::Send,
            Operation::Write { .. } => Completed::Write,
            Operation::Read { .. } => Completed::Read,
        };
        let bytes = if operation == Completed::Read { bytes } else { 0 };
        let completion = Completion { operation, bytes, ..sent(key, send, Status::SUCCESS) };
        self.complete_send(key, send, completion);
    }

    fn failed(&mut self, key: Key, send: &Send, status: Status) {
        self.complete_send(key, send, sent(key, send, status));
        self.fail(key);
    }

    fn complete_send(&mut self, key: Key, send: &Send, completion: Completion) {
        let Some(cq) = self.qp(key).map(|qp| qp.send_cq) else { return };
        let frees = Frees::Sends { id: key, position: send.position };
        self.complete(cq, Entry { completion, frees });
    }

    /// Moves the queue pair into the error state, and flushes it.
    pub(super) fn fail(&mut self, key: Key) {
        if let Some(qp) = self.qp(key) {
            qp.state = QpState::Error;
            self.flush(key);
        }
        // This end acknowledges no more messages, so the peer's waiting message fails.
        if let Some(peer) = self.ids.get(&key).and_then(|id| id.peer) {
            self.run(peer);
        }
    }

    /// Completes all requests of a queue pair in the error state.
    fn flush(&mut self, key: Key) {
        let Some(qp) = self.qp(key) else { return };
        let (sends, receives) = (std::mem::take(&mut qp.sends), std::mem::take(&mut qp.receives));
        let recv_cq = qp.recv_cq;
        for send in sends {
            self.complete_send(key, &send, sent(key, &send, Status::WR_FLUSH_ERR));
        }
        for receive in receives {
            let status = Status::WR_FLUSH_ERR;
            let completion =
                Completion { id: receive.id, status, qp_num: key, ..Completion::default() };
            self.complete(recv_cq, Entry { completion, frees: Frees::Receive { id: key } });
        }
    }
}

fn sent(key: Key, send: &Send, status: Status) -> Completion {
    Completion { id: send.id, status, qp_num: key, ..Completion::default() }
}
