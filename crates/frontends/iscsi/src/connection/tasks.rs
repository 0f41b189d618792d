//! The SCSI commands of a session: receives, schedules, executes and aborts them.

use super::receive::Destination;
use super::{Connection, SessionState, token};
use crate::context::{Action, Context};
use crate::limits;
use crate::scsi::{Command, Extent, Failure, Sense};
use crate::task::{Slot, Task, TaskState, Window};
use crate::unit::{Lun, Unit};
use crate::wire::{DataOut, IMMEDIATE, NO_TAG, ScsiCommand, data_bytes, flag, reject, view};
use farblock_block::Completion;
use farblock_reactor::allowance;

/// The task attribute for an ordered task.
const ORDERED: u8 = 2;

impl Connection {
    /// Finds the task with this initiator task tag, unless the task is aborted.
    pub(super) fn find(&self, tag: u32) -> Option<Slot> {
        let found = |task: &Task| task.tag == tag && task.state != TaskState::Free;
        let index = self.tasks.iter().position(|task| found(task) && !task.is_aborted)?;
        Some(Slot(index as u16))
    }

    /// Handles the complete header of a command. Returns the destination of the data in the same
    /// PDU (immediate data).
    pub(super) fn begin_command(&mut self, cx: &mut Context) -> Destination {
        let header: ScsiCommand = view(&self.input.bhs);
        let (tag, data) = (header.task_tag.get(), data_bytes(&self.input.bhs));
        let (reads, writes) = (header.flags & flag::READ != 0, header.flags & flag::WRITE != 0);
        let unasked = header.flags & flag::FINAL == 0;
        let expected = header.expected_bytes.get();
        let agreed = self.parameters;
        let fault = if tag == NO_TAG || self.find(tag).is_some() {
            Some("another task has the same tag")
        } else if data > 0 && (!agreed.immediate_data || !writes) {
            Some("immediate data that the login did not allow")
        } else if data > expected.min(agreed.first_burst) {
            Some("more data than the burst limit allows")
        } else if unasked && (agreed.initial_r2t || !writes) {
            Some("unsolicited data that the login did not allow")
        } else {
            None
        };
        if let Some(reason) = fault {
            self.protocol_error(cx, reason);
            return Destination::Nowhere;
        }
        let is_immediate = header.opcode & IMMEDIATE != 0;
        if is_immediate && self.numbers.immediate >= limits::MAX_IMMEDIATE_TASKS {
            self.reject(reject::TOO_MANY_IMMEDIATE);
            self.input.bhs[16..20].copy_from_slice(&NO_TAG.to_be_bytes());
            return Destination::Nowhere;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Task::free());
            Slot(self.tasks.len() as u16 - 1)
        });
        let window =
            if is_immediate { &mut self.numbers.immediate } else { &mut self.numbers.counted };
        *window += 1;
        let judged = self.judge(cx, &header, reads && writes);
        let task = self.entry(slot);
        task.begin(tag, *judged.as_ref().unwrap_or(&Command::Nothing), expected);
        task.window = if is_immediate { Window::Immediate } else { Window::Numbered };
        task.is_ordered = header.flags & flag::ATTRIBUTE == ORDERED;
        task.failure = judged.err();
        task.unasked = unasked;
        task.in_payload = true;
        task.received = data;
        if task.failure.is_none() {
            let wants = task.command.wants_bytes(cx.unit.geometry.block_size);
            // The result fits into 32 bits, because `expected` does.
            task.wanted = if writes { wants.min(expected.into()) as u32 } else { 0 };
            task.prepare(&cx.unit.geometry);
        }
        Destination::Task(slot, 0)
    }

    /// Parses a command, and checks whether the logical unit may execute it.
    fn judge(
        &mut self,
        cx: &mut Context,
        header: &ScsiCommand,
        both_ways: bool,
    ) -> Result<Command, Failure> {
        let is_ours = Lun::parse(header.lun.get()) == Lun::Zero;
        let command = Command::parse(&header.cdb);
        let skips = command.as_ref().is_ok_and(Command::ignores_attention);
        if is_ours
            && !skips
            && let Some(attention) = self.attentions.pop_front()
        {
            return Err(attention.into());
        }
        if !is_ours {
            return command.map_err(Failure::from).and_then(|command| {
                Unit::answer_for_nobody(&command).map(|_| command).map_err(Failure::from)
            });
        }
        if both_ways {
            return Err(Sense::INVALID_FIELD.into());
        }
        let command = command?;
        cx.unit.check(&self.initiator, &command)?;
        Ok(command)
    }

    /// Handles a command once its immediate data has arrived.
    pub(super) fn end_command(&mut self, cx: &mut Context) {
        let header: ScsiCommand = view(&self.input.bhs);
        let Some(slot) = self.find_payload(header.task_tag.get()) else { return };
        let is_ours = Lun::parse(header.lun.get()) == Lun::Zero;
        let task = self.entry(slot);
        task.in_payload = false;
        if task.is_aborted {
            self.finish(cx, slot);
        } else if !is_ours && task.failure.is_none() {
            let data = Unit::answer_for_nobody(&task.command)
                .expect("the check above accepted the command");
            self.answer_bytes(slot, &data);
            self.release(cx, slot);
        } else {
            self.gathered(cx, slot);
        }
    }

    /// Finds the task whose data has just arrived, even if the task is aborted.
    fn find_payload(&self, tag: u32) -> Option<Slot> {
        let index = self.tasks.iter().position(|task| task.tag == tag && task.in_payload)?;
        Some(Slot(index as u16))
    }

    /// Handles the complete header of a Data-Out. Returns the destination of its data.
    pub(super) fn begin_data_out(&mut self, cx: &mut Context) -> Destination {
        let header: DataOut = view(&self.input.bhs);
        let data = data_bytes(&self.input.bhs);
        // An unknown tag is not an error: the target may have aborted or refused the task.
        let Some(slot) = self.find(header.task_tag.get()) else { return Destination::Nowhere };
        let (first_burst, max_burst) = (self.parameters.first_burst, self.parameters.max_burst);
        let task = self.entry(slot);
        let offset = header.offset.get();
        let is_last = header.flags & flag::FINAL != 0;
        let asked = header.target_tag.get() != NO_TAG;
        let end = offset.checked_add(data);
        // Data that the target requested arrives in bursts, one for each R2T, in order.
        let burst_end = if asked {
            let number = (task.received.saturating_sub(task.asked_from)) / max_burst + 1;
            let end = number.checked_mul(max_burst).and_then(|n| n.checked_add(task.asked_from));
            end.unwrap_or(u32::MAX).min(task.asked_to)
        } else {
            first_burst.min(task.expected)
        };
        let fault = if asked && header.target_tag.get() != u32::from(slot.0) {
            Some("the data belong to no known transfer")
        } else if asked != (task.state == TaskState::Asking) || !asked && !task.unasked {
            Some("data that the target did not request")
        } else if end.is_none_or(|end| end > burst_end) {
            Some("more data than the burst limit allows")
        } else if asked && is_last != (end == Some(burst_end)) {
            Some("the data sequence is longer or shorter than the target requested")
        } else {
            None
        };
        if let Some(reason) = fault {
            self.protocol_error(cx, reason);
            return Destination::Nowhere;
        }
        if offset != task.received || header.data_sn.get() != task.data_sn {
            // Fail the command, and discard the data that still arrives for it.
            self.answer_failure(slot, Sense::DATA_PHASE.into());
            self.release(cx, slot);
            self.admit_tasks(cx);
            return Destination::Nowhere;
        }
        task.received += data;
        task.data_sn = if is_last { 0 } else { task.data_sn.wrapping_add(1) };
        if !asked && is_last {
            task.unasked = false;
        }
        task.in_payload = true;
        Destination::Task(slot, offset)
    }

    /// Handles a Data-Out whose data is complete.
    pub(super) fn end_data_out(&mut self, cx: &mut Context) {
        let header: DataOut = view(&self.input.bhs);
        let Some(slot) = self.find_payload(header.task_tag.get()) else { return };
        let task = self.entry(slot);
        task.in_payload = false;
        if task.is_aborted {
            self.finish(cx, slot);
        } else if task.state == TaskState::Gathering {
            self.gathered(cx, slot);
        } else if task.received >= task.wanted {
            self.run(cx, slot);
        } else {
            self.ask_for_data(slot);
        }
    }

    /// Continues with a task once all its unsolicited data has arrived.
    fn gathered(&mut self, cx: &mut Context, slot: Slot) {
        let task = self.entry(slot);
        if task.unasked {
            return;
        }
        let command = task.command;
        if let Some(failure) = task.failure {
            self.answer_failure(slot, failure);
            self.release(cx, slot);
            return;
        }
        if let Command::RequestSense { allocation } = command {
            let sense = self.attentions.pop_front().unwrap_or(Sense::NONE).bytes();
            let data = &sense[..sense.len().min(allocation as usize)];
            self.answer_bytes(slot, data);
            self.release(cx, slot);
            return;
        }
        match cx.unit.answer(&command) {
            Ok(Some(data)) => {
                self.answer_bytes(slot, &data);
                self.release(cx, slot);
            }
            Err(sense) => {
                self.answer_failure(slot, sense.into());
                self.release(cx, slot);
            }
            Ok(None) => {
                task_mut(&mut self.tasks, slot).state = TaskState::Waiting;
                self.admission.waiting.push_back(slot);
                self.admit_tasks(cx);
            }
        }
    }

    /// Starts waiting tasks in order, as far as the buffer limit and ordered tasks allow.
    pub(super) fn admit_tasks(&mut self, cx: &mut Context) {
        while let Some(&slot) = self.admission.waiting.front() {
            let geometry = cx.unit.geometry;
            let (held, admitted, is_ordered) =
                (self.admission.held_bytes, self.admission.admitted, self.admission.is_ordered);
            let task = self.entry(slot);
            let needs = task.needs_bytes(&geometry);
            let most = allowance::portion(
                limits::CONNECTION_BUFFER_BYTES,
                limits::USUAL_SESSIONS.max(allowance::loops()),
            );
            let fits = held == 0 || held + needs <= most;
            let is_its_turn = !is_ordered && (admitted == 0 || !task.is_ordered);
            if self.state != SessionState::Open || !fits || !is_its_turn {
                return;
            }
            let task = task_mut(&mut self.tasks, slot);
            task.held_bytes = needs;
            task.state = TaskState::Asking;
            task.asked_from = task.received;
            task.asked_to = task.received;
            task.data_sn = 0;
            let has_all = task.received >= task.wanted;
            self.admission.is_ordered = task.is_ordered;
            self.admission.held_bytes += needs;
            self.admission.admitted += 1;
            self.admission.waiting.pop_front();
            if has_all { self.run(cx, slot) } else { self.ask_for_data(slot) }
        }
    }

    /// Sends R2Ts for as much of a task's data as the limits allow.
    fn ask_for_data(&mut self, slot: Slot) {
        let (max_burst, most) = (self.parameters.max_burst, self.parameters.max_r2t);
        loop {
            let task = self.entry(slot);
            let answered = (task.received - task.asked_from) / max_burst;
            let (offset, number) = (task.asked_to, task.r2t_sn);
            if offset == task.wanted || number - answered >= most {
                return;
            }
            let bytes = max_burst.min(task.wanted - offset);
            task.asked_to += bytes;
            task.r2t_sn += 1;
            self.put_r2t(slot, (offset, bytes), number);
        }
    }

    /// Submits a task to the namespace after all its data has arrived.
    fn run(&mut self, cx: &mut Context, slot: Slot) {
        let command = self.entry(slot).command;
        let prepared = match command {
            Command::ModeSelect { .. } | Command::ReservationOut { .. } => self.obey(cx, slot),
            Command::WriteSame { extent, has_data, .. } => {
                self.prepare_fill(cx, slot, extent, has_data)
            }
            Command::Unmap { .. } => self.prepare_unmap(cx, slot),
            Command::CompareWrite { extent, .. } => self.prepare_compared(cx, slot, extent),
            Command::Flush(_) => {
                self.entry(slot).push(0, 0, None);
                Ok(())
            }
            Command::TestUnitReady => {
                // Read a block to check whether the namespace is ready again.
                let blocks = cx.unit.geometry.blocks.min(1) as u32;
                self.entry(slot).push(0, blocks, None);
                Ok(())
            }
            _ => Ok(()),
        };
        let geometry = cx.unit.geometry;
        let key = self.key;
        let task = self.entry(slot);
        task.state = TaskState::Running;
        if let Err(failure) = prepared {
            task.failure = Some(failure);
            task.operations = 0;
        } else {
            task.operations = task.pieces.len();
            if matches!(command, Command::CompareWrite { .. }) && task.operations > 0 {
                return cx.wait_alone(key, slot);
            }
            for index in 0..task.pieces.len() {
                let token = token(key, slot, index);
                let op = task.begin_piece(index, &geometry, cx.reactor.buffers(), token);
                cx.submit(op);
            }
        }
        if task.operations == 0 {
            self.finish(cx, slot);
        }
    }

    /// Executes MODE SELECT or PERSISTENT RESERVE OUT, which do not access blocks.
    fn obey(&mut self, cx: &mut Context, slot: Slot) -> Result<(), Failure> {
        let Connection { tasks, initiator, .. } = self;
        let task = &tasks[usize::from(slot.0)];
        let notices = cx.unit.obey(initiator, &task.command, &task.parameters)?;
        for (who, what) in notices {
            cx.ask(Action::Notice(who, what));
        }
        Ok(())
    }

    /// Prepares a WRITE SAME, which fills many blocks with copies of one block or with zeroes.
    fn prepare_fill(
        &mut self,
        cx: &mut Context,
        slot: Slot,
        extent: Extent,
        has_data: bool,
    ) -> Result<(), Failure> {
        let geometry = cx.unit.geometry;
        let task = self.entry(slot);
        if has_data && [task.expected, task.wanted] != [geometry.block_size; 2] {
            // WRITE SAME needs exactly one block of data.
            return Err(Sense::INVALID_FIELD.into());
        }
        if task.parameters.iter().all(|&byte| byte == 0) {
            task.push(extent.lba, extent.blocks, None);
            return Ok(());
        }
        let blocks = farblock_frontend::pieces::piece_blocks(&geometry).min(extent.blocks);
        let mut buffer = cx.reactor.buffers().take(geometry.bytes(blocks));
        for block in buffer.chunks_exact_mut(task.parameters.len()) {
            block.copy_from_slice(&task.parameters);
        }
        task.push(extent.lba, blocks, Some(buffer));
        task.fill = Extent { lba: extent.lba + u64::from(blocks), blocks: extent.blocks - blocks };
        Ok(())
    }

    /// Checks that both halves of the data of a COMPARE AND WRITE have arrived: the expected data
    /// and the new data.
    fn prepare_compared(
        &mut self,
        cx: &mut Context,
        slot: Slot,
        extent: Extent,
    ) -> Result<(), Failure> {
        let wants = 2 * cx.unit.geometry.bytes(extent.blocks) as u32;
        let task = self.entry(slot);
        if [task.expected, task.wanted] != [wants; 2] {
            return Err(Sense::INVALID_FIELD.into());
        }
        if extent.blocks > 0 {
            task.push(extent.lba, extent.blocks, None);
        }
        Ok(())
    }

    /// Starts an exclusive task (COMPARE AND WRITE) in its turn.
    pub(crate) fn begin_alone(&mut self, cx: &mut Context, slot: Slot) {
        let (geometry, key, is_closed) = (cx.unit.geometry, self.key, self.is_closed());
        let task = task_mut(&mut self.tasks, slot);
        if is_closed || task.is_aborted {
            task.operations = 0;
            cx.end_alone();
            self.finish(cx, slot);
            return cx.turns.list(self.key);
        }
        let token = token(key, slot, 0);
        let op = task.begin_piece(0, &geometry, cx.reactor.buffers(), token);
        cx.submit_alone(op);
    }

    fn prepare_unmap(&mut self, cx: &mut Context, slot: Slot) -> Result<(), Failure> {
        let task = self.entry(slot);
        for (lba, blocks) in cx.unit.unmap_ranges(&task.parameters)? {
            task.push(lba, blocks, None);
        }
        Ok(())
    }

    /// Handles the completion of a block operation.
    pub(crate) fn complete(
        &mut self,
        cx: &mut Context,
        (slot, index): (Slot, usize),
        done: Completion,
    ) {
        let geometry = cx.unit.geometry;
        let is_closed = self.is_closed();
        let task = task_mut(&mut self.tasks, slot);
        if is_closed || task.is_aborted {
            // Do not continue an aborted WRITE SAME: other tasks wait until it has ended.
            task.fill.blocks = 0;
        }
        let is_alone = matches!(task.command, Command::CompareWrite { .. });
        if task.is_changing(index) {
            cx.changed();
        }
        if let Some(op) = task.end_piece(index, done, &geometry, cx.reactor.buffers()) {
            return if is_alone { cx.submit_alone(op) } else { cx.submit(op) };
        }
        if is_alone {
            cx.end_alone();
        }
        task.operations -= 1;
        if task.operations == 0 {
            self.finish(cx, slot);
        }
        cx.turns.list(self.key);
    }

    /// Answers a task whose operations have all completed.
    fn finish(&mut self, cx: &mut Context, slot: Slot) {
        let task = self.entry(slot);
        let (command, failure, is_aborted) = (task.command, task.failure, task.is_aborted);
        if is_aborted || self.is_closed() {
            // The task is aborted, or the connection closed: the initiator expects no answer.
        } else if let Some(failure) = failure {
            self.answer_failure(slot, failure);
        } else if let Command::Read(_) = command {
            self.answer_read(cx, slot);
        } else {
            self.answer_taken(cx, slot);
        }
        self.release(cx, slot);
        self.admit_tasks(cx);
    }

    /// Frees a slot and the buffers that its task still holds.
    pub(super) fn release(&mut self, cx: &mut Context, slot: Slot) {
        self.uncount(slot);
        let task = task_mut(&mut self.tasks, slot);
        if matches!(task.state, TaskState::Asking | TaskState::Running) {
            self.admission.admitted -= 1;
            self.admission.is_ordered &= !task.is_ordered;
        }
        task.give_buffers(cx.reactor.buffers());
        self.admission.held_bytes -= std::mem::take(&mut task.held_bytes);
        cx.passed(&task.barriers);
        task.barriers.clear();
        task.state = TaskState::Free;
        task.in_payload = false;
        self.free.push(slot);
    }

    /// Aborts the task with this tag, or all tasks if `tag` is `None`. Returns the number of
    /// aborted tasks that have not ended. `barrier` is the number of the abort request, which the
    /// target answers once these tasks have ended.
    pub(crate) fn abort(&mut self, cx: &mut Context, barrier: u32, tag: Option<u32>) -> usize {
        let mut waiting = 0;
        for index in 0..self.tasks.len() {
            let task = &mut self.tasks[index];
            if task.state == TaskState::Free || tag.is_some_and(|tag| tag != task.tag) {
                continue;
            }
            let slot = Slot(index as u16);
            task.is_aborted = true;
            if task.operations > 0 {
                task.barriers.push(barrier);
                waiting += 1;
                continue;
            }
            self.admission.waiting.retain(|&other| other != slot);
            // A task whose data is arriving needs its buffer until the data is complete.
            if !self.tasks[index].in_payload {
                self.release(cx, slot);
            }
        }
        self.admit_tasks(cx);
        waiting
    }
}

fn task_mut(tasks: &mut [Task], slot: Slot) -> &mut Task {
    &mut tasks[usize::from(slot.0)]
}
