//! Controller properties, and the lifecycle that CC controls (NVMe Base Specification 2.0,
//! "Controller Properties", "Controller Initialization", "Shutdown").

use super::limits;
use farblock_wire::fabrics::{PropertyGetCommand, PropertySetCommand, PropertySize};
use farblock_wire::property::{Cap, Cc, Crto, Csts, Version, offset};
use farblock_wire::status::Status;

/// The state of a controller between Connect and the end of its association.
///
/// ```text
///    Connect
///       |
///       v    EN 0->1, supported        SHN set                    flushed
///    Disabled -----------------> Ready -------> ShuttingDown -----------------> ShutDown
///     ^  |  \                     |  \              |                            ^  |
///     |  |   \ EN 0->1,           |   \_____________|____________________________/  |
///     |  |    v not supported     |     SHN set, nothing to flush                   |
///     |  |   Failed               |                 |                               |
///     |  |     |                  |                 |                               |
///     +--|-----+------------------+-----------------+-------------------------------+
///        |                     EN 1->0 (controller reset)
///        |
///        +--> ShutDown (SHN set while disabled; clearing SHN returns to Disabled)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lifecycle {
    /// CC.EN is 0: the controller accepts only fabrics commands. CSTS.RDY is 0.
    #[default]
    Disabled,
    /// The controller accepts every command. CSTS.RDY is 1.
    Ready,
    /// The host requested a shutdown and the target is flushing volatile caches. CSTS.SHST is 01b.
    ShuttingDown,
    /// The shutdown is complete. Only a controller reset leaves this state. CSTS.SHST is 10b.
    ShutDown,
    /// The host enabled an unsupported configuration. CSTS.CFS is 1.
    Failed,
}

/// Conditions of a state change, besides CC and the present state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether the controller is a discovery controller. Such a controller has no I/O queues, so
    /// their entry sizes do not matter.
    pub(crate) discovery: bool,
    /// Whether a shutdown must wait for a flush.
    pub(crate) must_flush: bool,
}

impl Lifecycle {
    /// Returns the state after the host has changed CC from `old` to `new`.
    #[must_use]
    pub(crate) fn after_cc(self, old: Cc, new: Cc, circumstances: Circumstances) -> Self {
        let shutdown = new.shn() != Cc::SHN_NONE;
        match (old.en(), new.en()) {
            (true, false) => Self::Disabled,
            (false, _) if shutdown => Self::ShutDown,
            (false, false) => Self::Disabled,
            (false, true) if is_supported(new, circumstances.discovery) => Self::Ready,
            (false, true) => Self::Failed,
            (true, true) => match self {
                Self::Ready if shutdown && circumstances.must_flush => Self::ShuttingDown,
                Self::Ready if shutdown => Self::ShutDown,
                other => other,
            },
        }
    }

    /// Returns the state after the flush of a shutdown.
    #[must_use]
    pub(crate) fn after_flush(self) -> Self {
        match self {
            Self::ShuttingDown => Self::ShutDown,
            other => other,
        }
    }

    /// Returns CSTS in this state. `enabled` is CC.EN.
    pub(crate) fn csts(self, enabled: bool) -> Csts {
        // A controller that is shut down stays ready until the host disables it ("CSTS.RDY").
        let csts = Csts::default().with_rdy(enabled && self != Self::Failed);
        match self {
            Self::Disabled | Self::Ready => csts,
            Self::ShuttingDown => csts.with_shst(Csts::SHST_OCCURRING),
            Self::ShutDown => csts.with_shst(Csts::SHST_COMPLETE),
            Self::Failed => csts.with_cfs(true),
        }
    }
}

/// Whether the controller supports this configuration (NVMe Base Specification 2.0, "Controller
/// Configuration"). Linux nvmet makes the same checks.
fn is_supported(cc: Cc, discovery: bool) -> bool {
    // For discovery controllers, hosts should set the entry sizes to zero, but some hosts do not.
    let entries = discovery || (cc.iosqes() == Cc::IOSQES_64 && cc.iocqes() == Cc::IOCQES_16);
    entries && cc.mps() == 0 && cc.ams() == 0 && cc.css() == Cc::CSS_NVM
}

/// The version of the base specification that controllers report.
pub(crate) const VERSION: Version = Version::V2_0;

/// Returns CAP of a controller whose I/O queues have at most `max_queue_depth` entries.
pub(crate) fn cap(max_queue_depth: u16) -> Cap {
    /// CAP.CRMS bit 0: the controller is ready with its media. The bit also means that CRTO exists.
    const CRMS_WITH_MEDIA: u8 = 1;
    Cap::default()
        .with_mqes_z(max_queue_depth - 1)
        .with_cqr(true)
        .with_to(limits::READY_TIMEOUT_500_MS)
        .with_css(Cap::CSS_NVM)
        .with_crms(CRMS_WITH_MEDIA)
}

/// The values that Property Get returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) cap: Cap,
    pub(crate) cc: Cc,
    pub(crate) csts: Csts,
}

impl Properties {
    /// Executes Property Get (NVMe Base Specification 2.0, "Property Get Command").
    pub(crate) fn read(&self, command: &PropertyGetCommand) -> Result<u64, Status> {
        let size = property_size(command.attrib)?;
        let (actual, value) = match command.ofst.get() {
            offset::CAP => (PropertySize::Eight, self.cap.0),
            offset::VS => (PropertySize::Four, u64::from(VERSION.0)),
            offset::CC => (PropertySize::Four, u64::from(self.cc.0)),
            offset::CSTS => (PropertySize::Four, u64::from(self.csts.0)),
            offset::CRTO => {
                let crto = Crto::default().with_crwmt(u16::from(limits::READY_TIMEOUT_500_MS));
                (PropertySize::Four, u64::from(crto.0))
            }
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        if size != actual {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(value)
    }
}

/// Returns the value that a Property Set writes to CC. CC is the only writable property.
pub(crate) fn written_cc(command: &PropertySetCommand) -> Result<Cc, Status> {
    let size = property_size(command.attrib)?;
    if command.ofst.get() != offset::CC || size != PropertySize::Four {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    // The value of a 4-byte property is in the low bytes; the high bytes are reserved.
    Ok(Cc(command.value.get() as u32))
}

fn property_size(attrib: u8) -> Result<PropertySize, Status> {
    PropertySize::parse(attrib).ok_or(Status::INVALID_FIELD.with_dnr())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Circumstances = Circumstances { discovery: false, must_flush: false };
    const FLUSH: Circumstances = Circumstances { discovery: false, must_flush: true };

    fn enabled() -> Cc {
        Cc::default().with_en(true).with_iosqes(Cc::IOSQES_64).with_iocqes(Cc::IOCQES_16)
    }

    #[test]
    fn every_lifecycle_transition_follows_the_diagram() {
        use Lifecycle::{Disabled, Failed, Ready, ShutDown, ShuttingDown};
        let off = Cc::default();
        let on = enabled();
        let stop = on.with_shn(Cc::SHN_NORMAL);
        let abrupt = on.with_shn(Cc::SHN_ABRUPT);
        let odd = on.with_mps(1);
        let off_stop = off.with_shn(Cc::SHN_NORMAL);
        let cases = [
            (Disabled, off, off, PLAIN, Disabled),
            (Disabled, off, on, PLAIN, Ready),
            (Disabled, off, odd, PLAIN, Failed),
            (Disabled, off, off_stop, PLAIN, ShutDown),
            (ShutDown, off_stop, off, PLAIN, Disabled),
            (ShutDown, off_stop, on, PLAIN, Ready),
            (Failed, odd, off, PLAIN, Disabled),
            (Failed, odd, on, PLAIN, Failed),
            (Ready, on, off, PLAIN, Disabled),
            (Ready, on, on, PLAIN, Ready),
            (Ready, on, stop, PLAIN, ShutDown),
            (Ready, on, abrupt, PLAIN, ShutDown),
            (Ready, on, stop, FLUSH, ShuttingDown),
            (ShuttingDown, stop, stop, FLUSH, ShuttingDown),
            (ShuttingDown, stop, off, FLUSH, Disabled),
            (ShutDown, stop, on, PLAIN, ShutDown),
            (ShutDown, stop, off, PLAIN, Disabled),
        ];
        for (from, old, new, circumstances, to) in cases {
            let seen = from.after_cc(old, new, circumstances);
            assert_eq!(seen, to, "{from:?}, {:#x} -> {:#x}", old.0, new.0);
        }
        assert_eq!(ShuttingDown.after_flush(), ShutDown);
        assert_eq!(Ready.after_flush(), Ready);
    }

    #[test]
    fn only_a_supported_configuration_can_be_enabled() {
        let sane = enabled();
        assert!(is_supported(sane, false));
        for cc in [
            sane.with_iosqes(5),
            sane.with_iocqes(3),
            sane.with_mps(1),
            sane.with_ams(1),
            sane.with_css(Cc::CSS_ALL),
        ] {
            assert!(!is_supported(cc, false), "{:#x}", cc.0);
        }
        assert!(is_supported(Cc::default().with_en(true), true));
        assert!(!is_supported(Cc::default().with_en(true), false));
    }

    #[test]
    fn csts_reports_the_lifecycle() {
        assert_eq!(Lifecycle::Disabled.csts(false), Csts(0));
        assert_eq!(Lifecycle::Ready.csts(true), Csts(1));
        assert_eq!(Lifecycle::Failed.csts(true), Csts(2));
        assert_eq!(Lifecycle::ShuttingDown.csts(true), Csts(1 | 1 << 2));
        assert_eq!(Lifecycle::ShutDown.csts(true), Csts(1 | 2 << 2));
        assert_eq!(Lifecycle::ShutDown.csts(false), Csts(2 << 2));
    }
}
