//! The suite that every implementation of [`Verbs`] must pass. Each case uses new connections. A
//! failed check panics.

mod connections;
mod faults;
mod stand;
mod transfers;

pub use stand::Stand;

use crate::verbs::Verbs;

macro_rules! cases {
    ($($module:ident::$case:ident;)+) => {
        /// The names of all cases.
        pub const NAMES: &[&str] = &[$(stringify!($case)),+];

        /// Runs the case with this name.
        ///
        /// # Panics
        /// Panics if a check fails, or no case has this name.
        pub fn run<V: Verbs + Clone>(stand: &Stand<V>, name: &str) {
            match name {
                $(stringify!($case) => $module::$case(stand),)+
                _ => panic!("the case {name} does not exist"),
            }
        }
    };
}

cases! {
    connections::private_data_reaches_both_ends;
    connections::a_reject_carries_private_data;
    connections::a_port_without_listener_rejects;
    connections::too_much_private_data_is_refused;
    connections::a_disconnection_flushes_and_notifies;
    connections::a_dropped_connection_notifies_its_peer;
    transfers::messages_arrive_in_order;
    transfers::slices_gather_and_scatter;
    transfers::inline_bytes_may_be_reused_at_once;
    transfers::writes_and_reads_move_memory;
    transfers::an_unsignaled_request_completes_silently;
    transfers::connections_share_receives;
    transfers::a_message_waits_for_a_receive;
    transfers::an_armed_queue_gives_one_event;
    faults::a_receiver_that_is_not_ready_fails_the_message;
    faults::a_wrong_key_fails_and_flushes;
    faults::a_range_beyond_the_registration_fails;
    faults::a_write_without_permission_fails;
    faults::a_dropped_registration_is_inaccessible;
    faults::a_message_longer_than_its_receive_fails;
}
