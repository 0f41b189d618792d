//! Tests of reservation notices to a host: the events, the log page, and the mask.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, KeyedCommand, Registry, ReservationRequest, SubsystemId, Ticket, limits,
};
use farblock_proto::ids::{CommandId, NamespaceId, QueueId};
use farblock_wire::Status;
use farblock_wire::fabrics::{CNTLID_DYNAMIC, ConnectData};
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::reservation::{
    AcquireAction, NotificationType, RegisterAction, ReleaseAction, ReservationType,
};
use farblock_wire::sqe::Sqe;

const NSID: NamespaceId = NamespaceId(1);
const EVENT: u64 = 0x0080_0006;
const EMPTY: Page = (0, 0, 0, 0);
const SHARED: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
const FIRST_KEY: u64 = 5;
const SECOND_KEY: u64 = 6;

/// A page of the log: its number, the type of notification, the number of further notifications,
/// and the namespace.
type Page = (u64, u8, u8, u32);

const ALL: [NotificationType; 3] = [
    NotificationType::REGISTRATION_PREEMPTED,
    NotificationType::RESERVATION_RELEASED,
    NotificationType::RESERVATION_PREEMPTED,
];

fn acquire(action: AcquireAction, preempted: u64) -> KeyedCommand {
    KeyedCommand::Acquire { action, rtype: SHARED, current: FIRST_KEY, preempted }
}

fn release(action: ReleaseAction, rtype: ReservationType) -> KeyedCommand {
    KeyedCommand::Release { action, rtype, current: FIRST_KEY }
}

/// Two hosts. The second host gets notices about the commands of the first host.
struct Pair {
    registry: Registry,
    subsystem: SubsystemId,
    first: Host,
    second: Host,
}

impl Pair {
    fn new() -> Pair {
        let (mut registry, subsystem) = registry();
        let first = Host::ready(&mut registry);
        let data = ConnectData::new([8; 16], CNTLID_DYNAMIC, SUBSYSTEM_NQN, HOST_NQN);
        let connect = Connect { data, ..Connect::admin(SUBSYSTEM_NQN) };
        let second = Host::of(&connect.send(&mut registry, at(0)).expect("an allowed host"));
        second.write_cc(&mut registry, enabling(), at(0));
        drain(&mut registry);
        Pair { registry, subsystem, first, second }
    }

    /// Sends an Asynchronous Event Request with this identifier from the second host.
    fn wait_for_event(&mut self, cid: u16) {
        let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid, 0);
        self.second.admin(&mut self.registry, &sqe, at(0));
    }

    /// Executes a request of one host. Returns the events of the second host.
    fn carry_out(&mut self, is_first: bool, request: KeyedCommand) -> Vec<CommandId> {
        let controller = if is_first { self.first.id } else { self.second.id };
        let (ticket, queue, namespace) = (Ticket(1), QueueId(1), NSID);
        let asked = ReservationRequest { ticket, controller, queue, namespace, request };
        self.registry.reserve(&asked).expect("a valid command");
        let mut events = Vec::new();
        while let Some(action) = self.registry.poll_action() {
            match action {
                Action::Access(change) => {
                    self.registry.access_spread(self.subsystem, NSID, change.serial);
                }
                Action::Reserved { status, .. } => assert_eq!(status, Status::SUCCESS),
                other => events.extend(self.told(&other)),
            }
        }
        events
    }

    fn told(&self, action: &Action) -> Option<CommandId> {
        let Action::Complete { controller, command, result, .. } = action else { return None };
        assert_eq!((*controller, *result), (self.second.id, EVENT), "{action:?}");
        Some(*command)
    }

    fn register(&mut self) {
        for (is_first, new) in [(true, FIRST_KEY), (false, SECOND_KEY)] {
            let action = RegisterAction::REGISTER;
            let request = KeyedCommand::Register { action, current: None, new, persist: None };
            assert_eq!(self.carry_out(is_first, request), []);
        }
    }

    /// Causes a notification of this type to the second host. Returns the second host's events.
    fn happens(&mut self, what: NotificationType) -> Vec<CommandId> {
        self.register();
        match what {
            NotificationType::REGISTRATION_PREEMPTED => {
                self.carry_out(true, acquire(AcquireAction::PREEMPT, SECOND_KEY))
            }
            NotificationType::RESERVATION_RELEASED => {
                assert_eq!(self.carry_out(true, acquire(AcquireAction::ACQUIRE, 0)), []);
                self.carry_out(true, release(ReleaseAction::RELEASE, SHARED))
            }
            _ => self.carry_out(true, release(ReleaseAction::CLEAR, ReservationType::NONE)),
        }
    }

    fn mask(&mut self, mask: u32) {
        let mut sqe = command(AdminOpcode::SET_FEATURES, NSID.0);
        (sqe.cdw10, sqe.cdw11) = (0x82.into(), mask.into());
        assert_eq!(self.second.result(&mut self.registry, &sqe), Ok(0));
    }

    /// Reads the log as the second host. Returns the page, and the events after the read.
    fn read(&mut self, retains: bool) -> (Page, Vec<CommandId>) {
        let mut sqe = log_page(0x80, 0, 64);
        sqe.cdw10 = (sqe.cdw10.get() | u32::from(retains) << 15).into();
        let page = self.second.fetch(&mut self.registry, sqe, 64).expect("a readable page");
        let number = u64::from_le_bytes(page[..8].try_into().expect("eight"));
        let namespace = u32::from_le_bytes(page[12..16].try_into().expect("four bytes"));
        let events = drain(&mut self.registry);
        let events = events.iter().filter_map(|action| self.told(action)).collect();
        ((number, page[8], page[9], namespace), events)
    }
}

#[test]
fn masked_notifications_are_neither_reported_nor_logged() {
    for (what, bit) in ALL.into_iter().zip(1..) {
        let mut pair = Pair::new();
        pair.wait_for_event(1);
        pair.mask(1 << bit);
        assert_eq!(pair.happens(what), [], "{what:?} is masked");
        assert_eq!(pair.read(false), (EMPTY, vec![]), "{what:?} is masked");
        pair.mask(0b1110 & !(1 << bit));
        assert_eq!(pair.happens(what), [CommandId(1)], "all but {what:?} are masked");
        assert_eq!(pair.read(false), ((1, what.0, 0, 1), vec![]), "all but {what:?} are masked");
        // A host never gets a notification whose type was masked when the cause occurred.
        pair.wait_for_event(2);
        pair.mask(0);
        assert_eq!(pair.read(false), (EMPTY, vec![]));
    }
}

#[test]
fn the_log_is_read_in_order_and_remaining_entries_raise_the_event_again() {
    let mut pair = Pair::new();
    (1..=4).for_each(|cid| pair.wait_for_event(cid));
    assert_eq!(pair.happens(ALL[0]), [CommandId(1)]);
    assert_eq!(pair.happens(ALL[1]), [], "no second event before the log is read");
    assert_eq!(pair.happens(ALL[2]), []);
    let first = (1, ALL[0].0, 2, 1);
    assert_eq!(pair.read(true), (first, vec![]), "the page stays the same");
    assert_eq!(pair.read(false), (first, vec![CommandId(2)]));
    assert_eq!(pair.read(false), ((2, ALL[1].0, 1, 1), vec![CommandId(3)]));
    assert_eq!(
        pair.read(false),
        ((3, ALL[2].0, 0, 1), vec![]),
        "the last entry leaves the log empty"
    );
    assert_eq!(pair.read(false), (EMPTY, vec![]));
    assert_eq!(pair.happens(ALL[0]), [CommandId(4)]);
    assert_eq!(pair.read(false), ((4, ALL[0].0, 0, 1), vec![]), "the numbers continue");
}

#[test]
fn a_full_log_drops_the_oldest_entry_and_skips_its_number() {
    let room = limits::RESERVATION_NOTIFICATIONS as u64;
    let mut pair = Pair::new();
    for _ in 0..room + 2 {
        pair.happens(ALL[0]);
    }
    for number in 3..=room + 2 {
        let left = (room + 2 - number) as u8;
        assert_eq!(pair.read(false).0, (number, ALL[0].0, left, 1));
    }
    assert_eq!(pair.read(false).0, EMPTY);
}
