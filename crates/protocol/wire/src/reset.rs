//! Cross-Controller Reset: through one controller of a subsystem, a host ends another controller
//! (Base 2.3, "Cross-Controller Reset command").

use crate::Sqe;
use crate::opcode::AdminOpcode;

/// The controller to end, with the values that its Identify Controller data reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrossControllerReset {
    /// Impacted controller's identifier (ICID).
    pub icid: u16,
    /// Controller instance uniquifier of the impacted controller (CIU).
    pub ciu: u8,
    /// Controller instance random number of the impacted controller (CIRN).
    pub cirn: u64,
}

impl CrossControllerReset {
    /// Completion dword 0: the impacted controller and its commands have already ended (IRS).
    pub const IMMEDIATE: u64 = 1 << 0;

    /// Reads the command's dwords 10, 12 and 13.
    pub const fn parse(sqe: &Sqe) -> Self {
        let (cdw10, low) = (sqe.cdw10.get(), sqe.cdw12.get());
        let cirn = (sqe.cdw13.get() as u64) << 32 | low as u64;
        Self { icid: cdw10 as u16, ciu: (cdw10 >> 16) as u8, cirn }
    }

    /// Returns the command as a submission queue entry.
    pub fn emit(&self) -> Sqe {
        Sqe {
            opcode: AdminOpcode::CROSS_CONTROLLER_RESET.0,
            flags: Sqe::FLAGS_SGL,
            cdw10: (u32::from(self.icid) | u32::from(self.ciu) << 16).into(),
            cdw12: (self.cirn as u32).into(),
            cdw13: ((self.cirn >> 32) as u32).into(),
            ..Sqe::zeroed()
        }
    }
}
