//! The interface to execute single commands while a queue connects or authenticates.

use farblock_proto::host::{Command, ConnectError};
use farblock_wire::Cqe;

/// A queue that executes commands one at a time, over any transport.
pub(crate) trait Exchange {
    /// Executes one command. The host sends `data` to the controller. Returns the completion and
    /// the controller's data. `during` names the current step for error messages.
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError>;
}
