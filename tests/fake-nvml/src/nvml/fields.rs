//! Field values.

use super::*;

#[derive(Clone, Copy)]
pub(super) enum Number {
    Double(f64),
    Unsigned(f64),
    Long(f64),
    LongLong(f64),
    SignedLongLong(f64),
    Signed(f64),
    Short(f64),
}

impl Number {
    /// `nvmlValueType_t` and the bits of `nvmlValue_t`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "C gets the nearest value of its type"
    )]
    fn bits(self) -> (c_uint, u64) {
        match self {
            Number::Double(value) => (0, value.to_bits()),
            Number::Unsigned(value) => (1, u64::from(uint(value))),
            Number::Long(value) => (2, ulong(value)),
            Number::LongLong(value) => (3, ulong(value)),
            Number::SignedLongLong(value) => (4, (value.round() as i64).cast_unsigned()),
            Number::Signed(value) => (5, u64::from(sint(value).cast_unsigned())),
            Number::Short(value) => (6, u64::from(value.round() as u16)),
        }
    }
}

pub(super) fn field_values(call: &Call, count: c_int, values: *mut FieldValue) -> Result<(), Ret> {
    let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
    if count == 0 || values.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    for place in 0..count {
        let entry = values.wrapping_add(place);
        let asked = get(entry)?;
        let mut answer = FieldValue { stamp: call.runtime.stamp(call.t), latency_us: 1, ..asked };
        match field(call, asked.id, asked.scope) {
            Ok(number) => {
                (answer.kind, answer.value) = number.bits();
                answer.result = codes::SUCCESS;
            }
            Err(code) => answer.result = code,
        }
        put(entry, answer)?;
    }
    if call.scenario().field_values_overrun {
        put(
            values.wrapping_add(count),
            FieldValue {
                id: 0xDEAD,
                scope: 0xDEAD,
                stamp: -1,
                latency_us: -1,
                kind: 0xDEAD,
                result: codes::UNKNOWN,
                value: u64::MAX,
            },
        )?;
    }
    Ok(())
}

pub(super) fn field(call: &Call, id: c_uint, scope: c_uint) -> Result<Number, Ret> {
    let gpu = call.whole()?;
    if let Some(number) = scripted_field(gpu, id, scope, call.t)? {
        return Ok(number);
    }
    let power = |signal: Option<&Signal>| {
        // Scope 1 is the module, which only some boards measure.
        if scope == 0 { Ok(Number::Unsigned(now(signal, call)? * 1e3)) } else { Err(NOT_SUPPORTED) }
    };
    let nanoseconds = |counter: Option<&Counter>| Ok(Number::LongLong(counted(counter, call)? * 1e9));
    let moved = if call.scenario().renumbered_fields() { 18 } else { 0 };
    match id {
        1 | 2 => Ok(Number::Unsigned(f64::from(ecc_mode(gpu, call)?))),
        3..=6 => Ok(Number::LongLong(counted(ecc(gpu, (id - 3) % 2, (id - 3) / 2)?, call)?)),
        74..=79 => nanoseconds(violation(gpu, id - 74)),
        82 => Ok(Number::Unsigned(now(gpu.memory_temperature.as_ref(), call)?)),
        83 => Ok(Number::LongLong(counted(gpu.energy_counter().as_ref(), call)? * 1e3)),
        91 => Ok(Number::Unsigned(gpu.nvlink.as_ref().map_or(0, Vec::len) as f64)),
        94 => Ok(Number::Unsigned(counted(gpu.pcie_replays.as_ref(), call)?)),
        138..=141 => {
            let counter = if id.is_multiple_of(2) { &gpu.nvlink_tx } else { &gpu.nvlink_rx };
            let bytes = counted(counter.as_ref(), call)?;
            let links = gpu.nvlink.as_ref().ok_or(NOT_SUPPORTED)?.len();
            let share = match scope {
                c_uint::MAX => links as f64,
                link if (link as usize) < links => 1.0,
                _ => return Err(INVALID_ARGUMENT),
            };
            Ok(Number::LongLong((bytes * share / 1024.0).floor()))
        }
        185 | 186 => power(gpu.power.as_ref()),
        189 => power(gpu.power_default_limit.as_ref()),
        190 => power(enforced(gpu)),
        191 if scope == 0 => Ok(Number::LongLong(counted(gpu.energy_counter().as_ref(), call)? * 1e3)),
        192 => power(gpu.power_limit.as_ref()),
        197 => Ok(Number::LongLong(counted(gpu.pcie_tx.as_ref(), call)?)),
        198 => Ok(Number::LongLong(counted(gpu.pcie_rx.as_ref(), call)?)),
        _ if id == 251 + moved => nanoseconds(gpu.throttled_sw_thermal.as_ref()),
        _ if id == 252 + moved => nanoseconds(gpu.throttled_hw_thermal.as_ref()),
        _ if id == 253 + moved => nanoseconds(gpu.throttled_hw_power_brake.as_ref()),
        0 | 400.. => Err(INVALID_ARGUMENT),
        _ => Err(NOT_SUPPORTED),
    }
}

/// A field that the scenario gives by number: `"ID"`, `"ID@SCOPE"`, each also with `:TYPE`.
pub(super) fn scripted_field(gpu: &Gpu, id: c_uint, scope: c_uint, t: f64) -> Result<Option<Number>, Ret> {
    for (key, counter) in &gpu.fields {
        let (name, kind) = key.split_once(':').unwrap_or((key, ""));
        let (key_id, key_scope) = match name.split_once('@') {
            Some((key_id, key_scope)) => (key_id, key_scope.parse().ok()),
            None => (name, Some(scope)),
        };
        if key_id.parse() != Ok(id) || key_scope != Some(scope) {
            continue;
        }
        let value = counter.at(t)?;
        return Ok(Some(match kind {
            "double" => Number::Double(value),
            "uint" => Number::Unsigned(value),
            "ulong" => Number::Long(value),
            "ulonglong" => Number::LongLong(value),
            "longlong" => Number::SignedLongLong(value),
            "int" => Number::Signed(value),
            "ushort" => Number::Short(value),
            "" if value.fract() != 0.0 => Number::Double(value),
            "" if value < 0.0 => Number::SignedLongLong(value),
            "" => Number::LongLong(value),
            _ => return Err(codes::UNKNOWN),
        }));
    }
    Ok(None)
}
