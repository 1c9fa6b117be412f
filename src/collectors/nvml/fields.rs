//! `nvmlDeviceGetFieldValues` by raw FFI: many values of a GPU in one call.
//!
//! The safe wrapper cannot set a scope and looks answers up by an id that newer drivers renumber. Here answers are
//! matched by their position, and one entry more than is asked for stands at the end of the buffer, because some
//! drivers write one past the count.

use std::sync::{Mutex, PoisonError};

use nvml_wrapper_sys::bindings as sys;

use super::calls::call;
use super::error::{CallResult, Fault, check};
use super::{Handle, Nvml};

/// The call is not safe to make from two threads at once, whatever the documentation says of NVML as a whole.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The fields that gpurun reads. None of their ids is among 251-273, which drivers from 580.82 on renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Field {
    /// Time for which the power cap held the clocks down, ns.
    ThrottledPower = sys::field_id::NVML_FI_DEV_PERF_POLICY_POWER,
    /// Time for which heat held the clocks down, ns.
    ThrottledThermal = sys::field_id::NVML_FI_DEV_PERF_POLICY_THERMAL,
    /// Memory temperature, degrees Celsius.
    MemoryTemperature = sys::field_id::NVML_FI_DEV_MEMORY_TEMP,
    /// Energy since the driver was loaded, mJ.
    Energy = sys::field_id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    /// Sent over all NVLinks (with the scope of all links), KiB.
    NvlinkTx = sys::field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    /// Received over all NVLinks (with the scope of all links), KiB.
    NvlinkRx = sys::field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    /// Sent over PCIe, bytes; wraps.
    PcieTx = sys::field_id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    /// Received over PCIe, bytes; wraps.
    PcieRx = sys::field_id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
    /// Errors in flow control digits, all NVLinks together.
    NvlinkFlitErrors = sys::field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    /// Errors in data, all NVLinks together.
    NvlinkDataErrors = sys::field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    /// Transmissions that were repeated, all NVLinks together.
    NvlinkReplays = sys::field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    /// Links that were set up anew, all NVLinks together.
    NvlinkRecoveries = sys::field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
}

impl Field {
    /// How many fields there are.
    pub const COUNT: usize = 12;

    fn scope(self) -> u32 {
        match self {
            // "All links together", in the words of nvml.h.
            Field::NvlinkTx | Field::NvlinkRx => u32::MAX,
            _ => 0,
        }
    }
}

/// A value in the type in which the driver gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldNumber {
    /// `unsigned int` and `unsigned short`: a counter of this type wraps at 2^32.
    Narrow(u32),
    /// `unsigned long` and `unsigned long long`.
    Wide(u64),
    /// The signed types.
    Signed(i64),
    /// `double`.
    Double(f64),
}

impl FieldNumber {
    /// The value as a float.
    pub fn as_f64(self) -> f64 {
        match self {
            FieldNumber::Narrow(value) => f64::from(value),
            // A counter of bytes or nanoseconds passes 2^53 after months; then the error is one unit.
            FieldNumber::Wide(value) => value as f64,
            FieldNumber::Signed(value) => value as f64,
            FieldNumber::Double(value) => value,
        }
    }

    /// The value as a count; negative and fractional ones are none.
    pub fn as_count(self) -> Option<u64> {
        match self {
            FieldNumber::Narrow(value) => Some(u64::from(value)),
            FieldNumber::Wide(value) => Some(value),
            FieldNumber::Signed(value) => u64::try_from(value).ok(),
            FieldNumber::Double(value) if (0.0..9.0e15).contains(&value) => Some(value as u64),
            FieldNumber::Double(_) => None,
        }
    }
}

/// Which fields of one device to read, and the buffer for them. Kept between reads.
#[derive(Debug, Default)]
pub struct FieldRequest {
    fields: Vec<Field>,
    buffer: Vec<Entry>,
    answers: Vec<(Field, CallResult<FieldNumber>)>,
    /// Newest time stamp seen, µs since 1970 by the driver's clock; 0 before the first.
    newest: u64,
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Entry(sys::nvmlFieldValue_t);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entry").field(&self.0.fieldId).field(&self.0.nvmlReturn).finish()
    }
}

impl Entry {
    /// An entry that a driver which leaves it alone has not answered.
    fn blank(field_id: u32, scope_id: u32) -> Self {
        Self(sys::nvmlFieldValue_t {
            fieldId: field_id,
            scopeId: scope_id,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            nvmlReturn: sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
            value: sys::nvmlValue_t { ullVal: 0 },
        })
    }
}

impl FieldRequest {
    /// Asks for these fields.
    pub fn new(fields: &[Field]) -> Self {
        Self {
            fields: fields.to_vec(),
            buffer: Vec::with_capacity(fields.len() + 1),
            answers: Vec::with_capacity(fields.len()),
            newest: 0,
        }
    }

    /// No longer asks for this field.
    pub fn remove(&mut self, field: Field) {
        self.fields.retain(|asked| *asked != field);
    }

    /// The fields asked for, in the order of the answers.
    pub fn asked(&self) -> &[Field] {
        &self.fields
    }

    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The driver's clock at the newest answer, µs since 1970; 0 before the first answer.
    pub fn newest_stamp(&self) -> u64 {
        self.newest
    }

    fn prepare(&mut self) {
        self.buffer.clear();
        self.buffer.extend(self.fields.iter().map(|field| Entry::blank(*field as u32, field.scope())));
        // The guard past the count.
        self.buffer.push(Entry::blank(0, 0));
    }

    fn collect(&mut self) {
        self.answers.clear();
        for (field, entry) in self.fields.iter().zip(&self.buffer) {
            let answer = decode(&entry.0);
            if answer.is_ok()
                && let Ok(stamp) = u64::try_from(entry.0.timestamp)
            {
                self.newest = self.newest.max(stamp);
            }
            self.answers.push((*field, answer));
        }
    }
}

fn decode(entry: &sys::nvmlFieldValue_t) -> CallResult<FieldNumber> {
    // A field that this driver does not know is refused as an invalid argument: it will never know it.
    if entry.nvmlReturn == sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT {
        return Err(Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED));
    }
    check(entry.nvmlReturn)?;
    // SAFETY: every member of the union is valid for any bits, and `valueType` says which one was written.
    let number = unsafe {
        match entry.valueType {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => FieldNumber::Double(entry.value.dVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => FieldNumber::Narrow(entry.value.uiVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG =>
            {
                #[allow(clippy::useless_conversion, reason = "unsigned long has 32 bits on some targets")]
                FieldNumber::Wide(u64::from(entry.value.ulVal))
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                FieldNumber::Wide(entry.value.ullVal)
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                FieldNumber::Signed(entry.value.sllVal)
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => {
                FieldNumber::Signed(entry.value.siVal.into())
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => {
                FieldNumber::Narrow(entry.value.usVal.into())
            }
            _ => return Err(Fault::Implausible),
        }
    };
    match number {
        FieldNumber::Double(value) if !value.is_finite() => Err(Fault::Implausible),
        number => Ok(number),
    }
}

impl Nvml {
    /// Reads every field of the request in one call; each has its own result.
    ///
    /// # Errors
    /// Where the call as a whole fails; no field has a value then.
    pub fn field_values<'request>(
        &self,
        device: Handle,
        request: &'request mut FieldRequest,
    ) -> CallResult<&'request [(Field, CallResult<FieldNumber>)]> {
        request.prepare();
        let count = i32::try_from(request.fields.len()).map_err(|_| Fault::Implausible)?;
        {
            let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            // `Entry` is transparent; the buffer has one entry more than the count says.
            call!(self, nvmlDeviceGetFieldValues(device.0, count, request.buffer.as_mut_ptr().cast()))?;
        }
        request.collect();
        Ok(&request.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u32, bits: u64) -> sys::nvmlFieldValue_t {
        let mut entry = Entry::blank(83, 0).0;
        entry.nvmlReturn = 0;
        entry.valueType = kind;
        entry.value = sys::nvmlValue_t { ullVal: bits };
        entry
    }

    #[test]
    fn every_value_type_is_read() {
        assert_eq!(decode(&entry(0, 1.5_f64.to_bits())), Ok(FieldNumber::Double(1.5)));
        assert_eq!(decode(&entry(1, 7)), Ok(FieldNumber::Narrow(7)));
        assert_eq!(decode(&entry(2, 1 << 40)), Ok(FieldNumber::Wide(1 << 40)));
        assert_eq!(decode(&entry(3, u64::MAX)), Ok(FieldNumber::Wide(u64::MAX)));
        assert_eq!(decode(&entry(4, u64::MAX)), Ok(FieldNumber::Signed(-1)));
        assert_eq!(decode(&entry(5, u64::from(u32::MAX))), Ok(FieldNumber::Signed(-1)));
        assert_eq!(decode(&entry(6, 9)), Ok(FieldNumber::Narrow(9)));
        assert_eq!(decode(&entry(7, 9)), Err(Fault::Implausible));
        assert_eq!(decode(&entry(0, f64::NAN.to_bits())), Err(Fault::Implausible));
    }

    #[test]
    fn an_unanswered_entry_is_unknown_and_never_zero() {
        assert_eq!(
            decode(&Entry::blank(83, 0).0).map_err(Fault::reason),
            Err(crate::model::reading::Reason::NotSupported)
        );
    }

    #[test]
    fn the_guard_stands_past_the_count() {
        let mut request = FieldRequest::new(&[Field::Energy, Field::NvlinkRx]);
        request.prepare();
        assert_eq!(request.buffer.len(), 3);
        assert_eq!(request.buffer[1].0.scopeId, u32::MAX);
        assert_eq!(request.buffer[2].0.nvmlReturn, sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }

    #[test]
    fn no_field_is_among_the_renumbered() {
        for field in [
            Field::ThrottledPower,
            Field::ThrottledThermal,
            Field::MemoryTemperature,
            Field::Energy,
            Field::NvlinkTx,
            Field::NvlinkRx,
            Field::PcieTx,
            Field::PcieRx,
            Field::NvlinkFlitErrors,
            Field::NvlinkDataErrors,
            Field::NvlinkReplays,
            Field::NvlinkRecoveries,
        ] {
            assert!(!(251..=273).contains(&(field as u32)));
        }
    }
}
