//! Ownership of host identifiers. An identifier belongs to the host for which it is configured. If
//! there is no such host, the identifier belongs to the first host that authenticates with it.

use super::{Denied, Management, TargetShared, Why};
use crate::identity;
use farblock_proto::controller::{ConnectRequest, Identified, NotIts, Refusal};
use farblock_proto::ids::ControllerId;
use farblock_wire::Status;
use farblock_wire::fabrics::{ConnectData, ConnectInvalidParameter};

impl TargetShared {
    /// Checks that a host may use this host identifier. For an I/O queue, checks only the
    /// configured identifiers: the registry compares the identifier with the controller's.
    pub(super) fn check_identifier(
        &self,
        management: &Management,
        request: &ConnectRequest<'_>,
    ) -> Result<(), Denied> {
        let names = (request.data.subsystem_nqn(), request.data.host_nqn());
        let (Ok(subsystem), Ok(host)) = names else { return Ok(()) };
        if request.command.qid.get() != 0 {
            return match self.authenticator.may_be(subsystem, host, request.data.hostid) {
                true => Ok(()),
                false => Err(not_its_identifier(SAID)),
            };
        }
        self.judge(management, subsystem, host, request.data.hostid).map_err(not_its_identifier)
    }

    /// Assigns the host identifier to the host of this controller, which has authenticated.
    ///
    /// # Errors
    /// Returns a sentence for the log, if the host may no longer use the identifier.
    pub(crate) fn host_proved(&self, controller: ControllerId) -> Result<(), &'static str> {
        let mut management = self.lock();
        let Some(found) = management.registry.controller(controller) else { return Ok(()) };
        let config = found.subsystem.and_then(|id| management.registry.subsystem(id));
        if let Some(config) = config {
            self.judge(&management, &config.nqn, found.host_nqn, found.host_id)?;
        }
        self.takes_identifier(&mut management, controller);
        Ok(())
    }

    /// Like [`Self::host_proved`], for a caller that has checked the identifier and still holds the
    /// lock.
    pub(super) fn takes_identifier(&self, management: &mut Management, controller: ControllerId) {
        let Some(found) = management.registry.controller(controller) else { return };
        let mark = identity::mark(found.host_nqn);
        for teardown in management.registry.host_proved(controller, mark) {
            self.tear_down(management, &teardown);
        }
        self.act(management);
    }

    fn judge(
        &self,
        management: &Management,
        subsystem: &str,
        host: &str,
        id: [u8; 16],
    ) -> Result<(), &'static str> {
        if !self.authenticator.may_be(subsystem, host, id) {
            return Err(SAID);
        }
        let Some(found) = management.registry.find_subsystem(subsystem) else { return Ok(()) };
        if self.authenticator.is_said(subsystem, id) {
            return Ok(());
        }
        let host = Identified { nqn: host, mark: identity::mark(host), id };
        management.registry.check_identifier(found, &host).map_err(|reason| match reason {
            NotIts::Anothers => ANOTHERS,
            NotIts::OneTooMany => ONE_TOO_MANY,
        })
    }
}

const SAID: &str = "the host sent an identifier (HOSTID) that belongs to another host, or differs \
    from its host_id at this target: compare /etc/nvme/hostid";

const ANOTHERS: &str = "the host sent the identifier (HOSTID) of another host, which has \
    authenticated or holds a reservation registration: give each host its own (/etc/nvme/hostid), \
    or assign the identifier at this target (host_id, or allow-host --host-id)";

const ONE_TOO_MANY: &str = "the host uses as many identifiers (HOSTID) as a host may have at once: \
    give this host a single one (/etc/nvme/hostid)";

fn not_its_identifier(reason: &str) -> Denied {
    let parameter = ConnectInvalidParameter::in_data(std::mem::offset_of!(ConnectData, hostid));
    let status = Status::CONNECT_INVALID_HOST.with_dnr();
    let refusal = Refusal { status, result: parameter.emit() };
    Denied { refusal, why: Why::Identifier(reason.to_owned()) }
}
