//! The connections of a core. Each connection is a session on its transport.

use crate::backings::Backings;
use crate::claim::Claim;
use crate::context::Context;
use crate::fence::EndingId;
use crate::reservations::UnderWay;
use crate::route::Asking;
use crate::route::Route;
use crate::session::Session;
#[cfg(test)]
use crate::transport::memory::Memory;
use crate::transport::rdma::Rdma;
use crate::transport::tcp::Tcp;
use crate::volumes::VolumeId;
use farblock_block::BlockError;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{AccessChange, Instance, NamespaceTable, SubsystemId};
use farblock_proto::ids::CommandId;
use farblock_reactor::{Buffer, Event, TaskId};
use farblock_wire::Status;
use std::sync::Arc;

/// One connection, by its transport.
pub(crate) enum Connection {
    Tcp(Session<Tcp>),
    Rdma(Session<Rdma>),
    #[cfg(test)]
    Memory(Session<Memory>),
}

/// Generates methods that forward to the session. The session's methods have the documentation.
macro_rules! forward {
    ($(fn $name:ident(&mut self $(, $argument:ident: $kind:ty)*) $(-> $given:ty)?;)*) => {
        impl Connection {
            $(#[inline]
            pub(crate) fn $name(&mut self $(, $argument: $kind)*) $(-> $given)? {
                match self {
                    Self::Tcp(session) => session.$name($($argument),*),
                    Self::Rdma(session) => session.$name($($argument),*),
                    #[cfg(test)]
                    Self::Memory(session) => session.$name($($argument),*),
                }
            })*
        }
    };
}

forward! {
    fn start(&mut self, cx: &mut Context);
    fn handle(&mut self, cx: &mut Context, event: Event);
    fn complete(
        &mut self, cx: &mut Context, slot: SlotId, result: Result<(), BlockError>,
        buffer: Option<Buffer>
    );
    fn complete_held(
        &mut self, cx: &mut Context, command: CommandId, status: Status, result: u64
    );
    fn authenticated(
        &mut self, cx: &mut Context, slot: SlotId, machine: Box<farblock_secure::Controller>
    );
    fn forget_held(&mut self, command: CommandId);
    fn reserved(
        &mut self, cx: &mut Context, slot: SlotId, status: Status, report: Option<Vec<u8>>
    );
    fn apply_access(
        &mut self, cx: &mut Context, change: &AccessChange, under_way: &mut Vec<UnderWay>
    );
    fn abort(&mut self, cx: &mut Context, command: CommandId, asking: Asking);
    fn heard_of_abort(&mut self, cx: &mut Context, slot: SlotId, aborted: bool);
    fn is_under_way(&mut self, slot: SlotId) -> bool;
    fn changing(&mut self, claim: &Claim, under_way: &mut Vec<UnderWay>);
    fn granted(&mut self, cx: &mut Context, claim: &Claim);
    fn go_on(&mut self, cx: &mut Context);
    fn resume(&mut self, cx: &mut Context);
    fn schedule(&mut self, cx: &mut Context, line: VolumeId);
    fn on_notice(&mut self, cx: &mut Context, news: EndingId);
    fn set_namespaces(
        &mut self, cx: &mut Context, subsystem: SubsystemId, table: &Arc<NamespaceTable>,
        backings: &Arc<Backings>
    );
    fn list(&mut self, cx: &mut Context);
    fn unpark(&mut self, cx: &mut Context);
    fn finish_tick(&mut self, cx: &mut Context);
    fn drain(&mut self, cx: &mut Context);
    fn end(&mut self, cx: &mut Context);
    fn is_gone(&mut self) -> bool;
    fn leave(&mut self, cx: &mut Context);
    fn save_memory(&mut self, cx: &mut Context);
    fn overdue_bytes(&mut self, cx: &mut Context) -> Option<(usize, usize)>;
    fn evict(&mut self, cx: &mut Context, bytes: usize);
    fn task(&mut self) -> TaskId;
    fn instance(&mut self) -> Option<Instance>;
    fn route(&mut self) -> Route;
    fn uses_tls(&mut self) -> bool;
}
