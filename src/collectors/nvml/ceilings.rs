//! What a GPU can reach at most, as the driver says it: the limits that no value of it can pass.

use nvml_wrapper_sys::bindings as sys;

use super::calls::call;
use super::error::{CallResult, Fault, check};
use super::{Handle, Nvml};

/// The limits of a GPU; `None` where the driver does not say one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// Highest power limit that can be set, W.
    pub power_w: Option<f64>,
    /// Highest SM clock, MHz.
    pub sm_mhz: Option<f64>,
    /// Highest memory clock, MHz.
    pub memory_mhz: Option<f64>,
    /// What the PCIe link can carry one way, MiB/s.
    pub pcie_mib_s: Option<f64>,
}

/// MB/s of a PCIe lane by generation, from 1, after the line code.
const LANE: [f64; 7] = [250.0, 500.0, 985.0, 1969.0, 3938.0, 7563.0, 15_125.0];

impl Nvml {
    /// The limits of a physical GPU. What the driver does not say, or says as 0, is unknown.
    pub fn ceilings(&self, device: Handle) -> Ceilings {
        let known = |value: CallResult<u32>| value.ok().filter(|value| *value > 0).map(f64::from);
        let clock = |kind| known(self.max_clock(device, kind));
        let lanes = known(self.max_pcie_width(device)).filter(|lanes| *lanes <= 32.0);
        let lane = self
            .max_pcie_generation(device)
            .ok()
            .and_then(|generation| LANE.get(usize::try_from(generation).ok()?.checked_sub(1)?).copied());
        Ceilings {
            power_w: known(self.max_power_limit(device)).map(|milliwatts| milliwatts / 1e3),
            sm_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_SM),
            memory_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM),
            pcie_mib_s: lanes.zip(lane).map(|(lanes, lane)| lanes * lane * 1e6 / f64::from(1 << 20)),
        }
    }

    fn max_power_limit(&self, device: Handle) -> CallResult<u32> {
        let (mut lowest, mut highest) = (0, 0);
        call!(
            self,
            nvmlDeviceGetPowerManagementLimitConstraints(device.0, &raw mut lowest, &raw mut highest)
        )?;
        Ok(highest)
    }

    fn max_clock(&self, device: Handle, kind: sys::nvmlClockType_t) -> CallResult<u32> {
        let mut megahertz = 0;
        call!(self, nvmlDeviceGetMaxClockInfo(device.0, kind, &raw mut megahertz))?;
        Ok(megahertz)
    }

    pub(super) fn max_pcie_generation(&self, device: Handle) -> CallResult<u32> {
        let mut generation = 0;
        call!(self, nvmlDeviceGetMaxPcieLinkGeneration(device.0, &raw mut generation))?;
        Ok(generation)
    }

    pub(super) fn max_pcie_width(&self, device: Handle) -> CallResult<u32> {
        let mut lanes = 0;
        call!(self, nvmlDeviceGetMaxPcieLinkWidth(device.0, &raw mut lanes))?;
        Ok(lanes)
    }
}
