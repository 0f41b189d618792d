//! Tests reservations that two targets share. The tests take the group's role: they put the changes
//! into one order.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, KeyedCommand, Registry, ReservationRequest, Reservations, Rights, SharedAnswer,
    SharedChange, SharedProposal, SubsystemId, Ticket,
};
use farblock_proto::ids::{NamespaceId, QueueId};
use farblock_wire::Status;
use farblock_wire::reservation::{
    AcquireAction, NotificationType, RegisterAction, ReservationStatus, ReservationType,
};

const NSID: NamespaceId = NamespaceId(1);
const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();

struct Target {
    registry: Registry,
    id: SubsystemId,
    host: Host,
}

impl Target {
    fn new() -> Self {
        let (mut registry, id) = registry();
        let host = Host::ready(&mut registry);
        host.io_queue(&mut registry, 1).expect("a granted queue");
        registry.share_reservations(id, NSID).expect("the namespace exists");
        drain(&mut registry);
        Self { registry, id, host }
    }

    fn ask(&mut self, ticket: u64, request: KeyedCommand) -> Vec<Action> {
        let (ticket, controller) = (Ticket(ticket), self.host.id);
        let request =
            ReservationRequest { ticket, controller, queue: QueueId(1), namespace: NSID, request };
        self.registry.reserve(&request).expect("a valid command");
        drain(&mut self.registry)
    }

    /// Sends a command and returns the number of the question to the group.
    fn consults(&mut self, ticket: u64, request: KeyedCommand) -> u64 {
        serial_of(&self.ask(ticket, request))
    }

    fn answer(&mut self, serial: u64, answer: SharedAnswer) -> Vec<Action> {
        self.registry.answer_shared(serial, answer);
        drain(&mut self.registry)
    }

    /// Answers that change `index` is the last one, and returns the proposal that follows.
    fn proposes(&mut self, serial: u64, index: u64) -> SharedProposal {
        let actions = self.answer(serial, SharedAnswer::Current(index));
        let [Action::ProposeReservations { proposal, .. }] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(proposal.base, index);
        proposal.clone()
    }

    /// Applies a change. Every core enforces it at once.
    fn apply(&mut self, proposal: &SharedProposal) -> Vec<Action> {
        let SharedProposal { base, text, notices, aborted, .. } = proposal.clone();
        let change = SharedChange { index: base + 1, text, notices, aborted };
        self.registry.apply_shared(self.id, NSID, change);
        let mut actions = drain(&mut self.registry);
        for action in actions.clone() {
            if let Action::Access(change) = action {
                self.registry.access_spread(self.id, NSID, change.serial);
            }
        }
        actions.extend(drain(&mut self.registry));
        actions
    }
}

fn serial_of(actions: &[Action]) -> u64 {
    let [Action::ConsultReservations { serial, .. }] = actions else { panic!("{actions:?}") };
    *serial
}

fn register(new: u64) -> KeyedCommand {
    let action = RegisterAction::REGISTER;
    KeyedCommand::Register { action, current: None, new, persist: None }
}

fn acquire(action: AcquireAction, current: u64, preempted: u64) -> KeyedCommand {
    let rtype = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
    KeyedCommand::Acquire { action, rtype, current, preempted }
}

fn done(ticket: u64, status: Status) -> Vec<Action> {
    vec![Action::Reserved { ticket: Ticket(ticket), status, report: None }]
}

fn applied(target: &Target, index: u64) -> Action {
    Action::SharedApplied { subsystem: target.id, namespace: NSID, index }
}

#[test]
fn a_command_waits_until_its_change_is_in_force() {
    let mut target = Target::new();
    let serial = target.consults(1, register(5));
    let proposal = target.proposes(serial, 0);
    let actions = target.apply(&proposal);
    assert_eq!(actions, [applied(&target, 1)], "registering changes no rights");
    assert_eq!(
        target.answer(serial, SharedAnswer::Current(0)),
        [],
        "an answer to an old question has no effect"
    );
    let actions = target.answer(proposal.serial, SharedAnswer::InForce);
    assert_eq!(actions, done(1, Status::SUCCESS));

    let serial = target.consults(2, acquire(AcquireAction::ACQUIRE, 5, 0));
    let proposal = target.proposes(serial, 1);
    let actions = target.apply(&proposal);
    let [Action::Access(change), last] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(change.rights(&[1; 16]), Rights::Read);
    assert_eq!(*last, applied(&target, 2));
    assert_eq!(
        target.ask(3, KeyedCommand::Report { bytes: 4096 }),
        [],
        "the report waits for the change"
    );
    let actions = target.answer(proposal.serial, SharedAnswer::InForce);
    assert_eq!(actions[..1], done(2, Status::SUCCESS));
    let actions = target.answer(serial_of(&actions[1..]), SharedAnswer::Current(2));
    let [Action::Reserved { report: Some(page), .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((page[4], page[5]), (3, 1), "the type, and one registrant");
}

#[test]
fn a_command_that_came_second_executes_on_the_state_after_the_first() {
    // The same host registers different keys through two targets at once.
    let mut targets = [Target::new(), Target::new()];
    let serials = [targets[0].consults(1, register(5)), targets[1].consults(1, register(6))];
    let first = targets[0].proposes(serials[0], 0);
    let second = targets[1].proposes(serials[1], 0);
    targets.iter_mut().for_each(|target| drop(target.apply(&first)));
    let actions = targets[0].answer(first.serial, SharedAnswer::InForce);
    assert_eq!(actions, done(1, Status::SUCCESS));
    let again = serial_of(&targets[1].answer(second.serial, SharedAnswer::Conflict));
    let actions = targets[1].answer(again, SharedAnswer::Current(1));
    assert_eq!(actions, done(1, CONFLICT), "the host has another key");
}

#[test]
fn a_target_with_a_newer_state_than_the_answer_consults_again() {
    let mut targets = [Target::new(), Target::new()];
    let serial = targets[0].consults(1, register(5));
    let first = targets[0].proposes(serial, 0);
    let serial = targets[1].consults(1, KeyedCommand::Report { bytes: 4096 });
    targets[1].apply(&first);
    let serial = serial_of(&targets[1].answer(serial, SharedAnswer::Current(0)));
    let actions = targets[1].answer(serial, SharedAnswer::Current(1));
    let [Action::Reserved { report: Some(page), .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(page.len(), ReservationStatus::LEN + 64);
}

#[test]
fn a_command_of_a_closed_queue_does_not_start_late() {
    let mut target = Target::new();
    let serial = target.consults(1, register(5));
    target.registry.queue_closed(target.host.id, QueueId(1));
    assert_eq!(target.answer(serial, SharedAnswer::Current(0)), []);

    target.host.io_queue(&mut target.registry, 1).expect("a granted queue");
    drain(&mut target.registry);
    let serial = target.consults(2, register(5));
    let proposal = target.proposes(serial, 0);
    target.registry.queue_closed(target.host.id, QueueId(1));
    assert_eq!(target.answer(proposal.serial, SharedAnswer::Conflict), []);
}

#[test]
fn every_target_notifies_its_hosts_and_aborts_their_commands() {
    let mut targets = [Target::new(), Target::new()];
    let gone = [9; 16];
    let text = Reservations::default().to_shared_text();
    let notices = vec![(gone, NotificationType::REGISTRATION_PREEMPTED)];
    let proposal = SharedProposal { serial: 0, base: 0, text, notices, aborted: vec![gone] };
    for target in &mut targets {
        let actions = target.apply(&proposal);
        let [Action::Access(change), last] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((&change.aborted, &change.access), (&vec![gone], &None));
        assert_eq!(*last, applied(target, 1));
        assert_eq!(target.apply(&proposal), [], "a repeated change does nothing");
    }
}

#[test]
fn changes_are_applied_in_order_although_later_ones_may_spread_first() {
    let mut target = Target::new();
    let mut serials = Vec::new();
    for index in 1..=2 {
        let (text, aborted) = (Reservations::default().to_shared_text(), vec![[9; 16]]);
        let change = SharedChange { index, text, notices: Vec::new(), aborted };
        target.registry.apply_shared(target.id, NSID, change);
        let actions = drain(&mut target.registry);
        let [Action::Access(change)] = &actions[..] else { panic!("{actions:?}") };
        serials.push(change.serial);
    }
    target.registry.access_spread(target.id, NSID, serials[1]);
    assert_eq!(drain(&mut target.registry), []);
    target.registry.access_spread(target.id, NSID, serials[0]);
    assert_eq!(drain(&mut target.registry), [applied(&target, 2)]);
}

#[test]
fn a_state_that_the_target_cannot_read_admits_no_host() {
    let mut target = Target::new();
    for text in ["", "persist 0\n", "persist 2\nfarblock reservations 1\ngeneration 0\n"] {
        assert_eq!(Reservations::from_shared_text(text), None, "{text:?}");
    }
    let (notices, aborted) = (Vec::new(), Vec::new());
    let new = SharedProposal { serial: 0, base: 0, text: "new".to_owned(), notices, aborted };
    let actions = target.apply(&new);
    let [Action::Access(change), _] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(change.rights(&HOST_ID), Rights::None);
    let serial = target.consults(1, register(5));
    let actions = target.answer(serial, SharedAnswer::Unreadable);
    assert_eq!(actions, done(1, Status::INTERNAL_ERROR));
}
