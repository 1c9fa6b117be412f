//! What a physical GPU is like: retired memory, links and modes. Read seldom, so each by its own call.

use std::ptr;

use nvml_wrapper_sys::bindings as sys;

use super::calls::call;
use super::error::{CallResult, Fault, check};
use super::{Field, FieldRequest, Handle, Nvml};
use crate::model::device::{DeviceFacts, Fact};

/// Errors of NVLink that the driver counts over all links.
const LINK_ERRORS: [Field; 4] =
    [Field::NvlinkFlitErrors, Field::NvlinkDataErrors, Field::NvlinkReplays, Field::NvlinkRecoveries];

/// Values that no link can have are none: 7 generations, 32 lanes.
fn link(value: CallResult<u32>, most: u32) -> CallResult<Fact> {
    value.and_then(|value| match value {
        value if (1..=most).contains(&value) => Ok(Fact::Count(u64::from(value))),
        _ => Err(Fault::Implausible),
    })
}

impl Nvml {
    /// The facts of a physical GPU, each with its value or the reason why there is none.
    pub fn facts(&self, device: Handle) -> DeviceFacts {
        let remapped = self.row_remap(device);
        [
            ("persistence_mode", self.persistence_mode(device)),
            ("ecc_mode", self.ecc_mode(device)),
            ("row_remap_pending", remapped.map(|(pending, _)| Fact::Flag(pending))),
            ("row_remap_failed", remapped.map(|(_, failed)| Fact::Flag(failed))),
            ("retired_pages", self.retired_pages(device).map(Fact::Count)),
            ("pcie_generation", link(self.pcie_generation(device), 7)),
            ("pcie_generation_max", link(self.max_pcie_generation(device), 7)),
            ("pcie_width", link(self.pcie_width(device), 32)),
            ("pcie_width_max", link(self.max_pcie_width(device), 32)),
            ("nvlink_errors", self.nvlink_errors(device).map(Fact::Count)),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.map_err(Fault::reason)))
        .collect()
    }

    fn persistence_mode(&self, device: Handle) -> CallResult<Fact> {
        let mut mode = 0;
        call!(self, nvmlDeviceGetPersistenceMode(device.0, &raw mut mode))?;
        Ok(Fact::Flag(mode != 0))
    }

    /// The mode in force, whatever the next reboot brings.
    fn ecc_mode(&self, device: Handle) -> CallResult<Fact> {
        let (mut current, mut pending) = (0, 0);
        call!(self, nvmlDeviceGetEccMode(device.0, &raw mut current, &raw mut pending))?;
        Ok(Fact::Flag(current != 0))
    }

    /// Whether a remap of rows waits for a reset, and whether one has failed.
    fn row_remap(&self, device: Handle) -> CallResult<(bool, bool)> {
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        call!(
            self,
            nvmlDeviceGetRemappedRows(
                device.0,
                &raw mut corrected,
                &raw mut uncorrected,
                &raw mut pending,
                &raw mut failed
            )
        )?;
        Ok((pending != 0, failed != 0))
    }

    /// Pages that were taken out of use, for single and for double bit errors.
    fn retired_pages(&self, device: Handle) -> CallResult<u64> {
        let causes = [
            sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        ];
        let mut pages = 0;
        for cause in causes {
            // Without room for the addresses only the number comes, and with it that there is no room.
            let mut count = 0;
            match call!(self, nvmlDeviceGetRetiredPages(device.0, cause, &raw mut count, ptr::null_mut())) {
                Err(fault) if !fault.is(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE) => {
                    return Err(fault);
                }
                _ => pages += u64::from(count),
            }
        }
        Ok(pages)
    }

    fn pcie_generation(&self, device: Handle) -> CallResult<u32> {
        let mut generation = 0;
        call!(self, nvmlDeviceGetCurrPcieLinkGeneration(device.0, &raw mut generation))?;
        Ok(generation)
    }

    fn pcie_width(&self, device: Handle) -> CallResult<u32> {
        let mut lanes = 0;
        call!(self, nvmlDeviceGetCurrPcieLinkWidth(device.0, &raw mut lanes))?;
        Ok(lanes)
    }

    /// The sum over those kinds of errors that the driver counts.
    fn nvlink_errors(&self, device: Handle) -> CallResult<u64> {
        let mut request = FieldRequest::new(&LINK_ERRORS);
        let mut sum = Err(Fault::NOT_SUPPORTED);
        for (_, answer) in self.field_values(device, &mut request)? {
            let count = answer.and_then(|number| number.as_count().ok_or(Fault::Implausible));
            sum = match (sum, count) {
                (Ok(sum), Ok(count)) => Ok(u64::saturating_add(sum, count)),
                (Err(_), Ok(count)) => Ok(count),
                // What the driver does not count is no error.
                (sum, Err(fault)) if fault.is_permanent() => sum,
                (_, Err(fault)) => return Err(fault),
            };
        }
        sum
    }
}
