//! One reader of `CUDA_VISIBLE_DEVICES`, with the CUDA driver's rules. Pure: text and snapshots in, indices out.

use crate::model::device::DeviceSnapshot;
use crate::model::id::GpuUuid;

/// What the integers of the variable count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ordinals {
    /// NVML indices: `CUDA_DEVICE_ORDER=PCI_BUS_ID`, or a host where the order makes no difference.
    PciBus,
    /// CUDA's own order, as libcuda told it: the UUID of each physical GPU.
    Cuda(Vec<GpuUuid>),
}

/// An entry that names no device to the driver, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The entry as typed, without blanks around it.
    pub entry: String,
    /// Why the driver does not take it.
    pub why: String,
}

/// What the variable names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// Indices into the candidates, in the variable's order.
    pub devices: Vec<usize>,
    /// What was dropped.
    pub dropped: Vec<Dropped>,
}

/// One entry, by its form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry<'a> {
    Ordinal(u32),
    Gpu(&'a str),
    Mig(&'a str),
}

impl Entry<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Ordinal(_) => 0,
            Self::Gpu(_) => 1,
            Self::Mig(_) => 2,
        }
    }
}

/// Whether the text has an entry that counts devices, so that CUDA's order matters.
pub fn has_ordinals(text: &str) -> bool {
    matches!(text.split(',').next().map(|entry| read(entry.trim())), Some(Ok(Entry::Ordinal(_))))
}

/// Reads the variable against the host's leaf devices.
///
/// The first entry decides whether integers, `GPU-` or `MIG-` names are read; the first entry that names no
/// device, of another form or negative ends the list; a repeated entry voids all of it; empty and `-1` mean
/// none; UUIDs may be cut to any prefix that is unique; digits may be followed by anything. At most one MIG
/// slice is visible.
pub fn parse(text: &str, devices: &[DeviceSnapshot], ordinals: &Ordinals) -> Visible {
    let entries: Vec<&str> = text.split(',').map(str::trim).collect();
    let mut visible = Visible::default();
    if entries == [""] {
        return visible;
    }

    // First by form alone, as the driver does: repetition is seen even behind an entry that names nothing.
    let mut read_entries: Vec<(&str, Entry<'_>)> = Vec::new();
    let mut stop: Option<(usize, String)> = None;
    for (position, entry) in entries.iter().enumerate() {
        match read(entry) {
            Err(why) => stop = Some((position, why)),
            Ok(form) if read_entries.first().is_some_and(|(_, first)| first.kind() != form.kind()) => {
                stop = Some((position, "indices, GPU- and MIG- UUIDs cannot be mixed".to_owned()));
            }
            Ok(form) => {
                if read_entries.iter().any(|(_, earlier)| *earlier == form) {
                    return voided(&entries, entry);
                }
                read_entries.push((entry, form));
                continue;
            }
        }
        break;
    }

    for (position, (entry, form)) in read_entries.iter().enumerate() {
        match find(form, devices, ordinals) {
            Ok(device) if visible.devices.contains(&device) => return voided(&entries, entry),
            Ok(device) => visible.devices.push(device),
            Err(why) => {
                stop = Some((position, why));
                break;
            }
        }
    }
    if let Some((position, why)) = stop {
        for (index, entry) in entries.iter().enumerate().skip(position) {
            let why = match index {
                _ if index == position => why.clone(),
                _ => {
                    format!("it comes after {:?}, which ends the list", entries.get(position).unwrap_or(&""))
                }
            };
            visible.dropped.push(Dropped { entry: (*entry).to_owned(), why });
        }
    }
    one_slice(&mut visible, devices);
    visible
}

/// Nothing is visible when an entry is repeated.
fn voided(entries: &[&str], repeated: &str) -> Visible {
    let why = format!("{repeated:?} names a device a second time, which makes the whole list invalid");
    let dropped = entries.iter().map(|entry| Dropped { entry: (*entry).to_owned(), why: why.clone() });
    Visible { devices: Vec::new(), dropped: dropped.collect() }
}

/// CUDA shows a process one MIG slice at most, and then no whole GPU.
fn one_slice(visible: &mut Visible, devices: &[DeviceSnapshot]) {
    let is_mig = |index: &usize| devices.get(*index).is_some_and(|device| device.mig.is_some());
    let Some(slice) = visible.devices.iter().copied().find(|index| is_mig(index)) else { return };
    for other in std::mem::replace(&mut visible.devices, vec![slice]) {
        if other != slice {
            let name = devices.get(other).and_then(|device| device.uuid.as_ref().ok());
            visible.dropped.push(Dropped {
                entry: name.map_or_else(|| "a device".to_owned(), ToString::to_string),
                why: "CUDA shows a process at most one MIG slice, and no other device with it".to_owned(),
            });
        }
    }
}

/// Reads the form of one entry.
fn read(entry: &str) -> Result<Entry<'_>, String> {
    if entry.starts_with("GPU-") {
        return Ok(Entry::Gpu(entry));
    }
    if entry.starts_with("MIG-") {
        return Ok(Entry::Mig(entry));
    }
    // As strtol does: a sign, digits, and whatever follows is left alone.
    let (negative, unsigned) = match entry.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, entry.strip_prefix('+').unwrap_or(entry)),
    };
    let digits = unsigned.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    if digits.is_empty() {
        return Err(match entry {
            "" => "an empty entry ends the list".to_owned(),
            _ => "neither an index nor a GPU- or MIG- UUID".to_owned(),
        });
    }
    let number = digits.parse::<u32>();
    if negative && number != Ok(0) {
        return Err("a negative index ends the list".to_owned());
    }
    number.map(Entry::Ordinal).map_err(|_| format!("no GPU has the index {digits}"))
}

/// The device that an entry names.
fn find(entry: &Entry<'_>, devices: &[DeviceSnapshot], ordinals: &Ordinals) -> Result<usize, String> {
    match entry {
        Entry::Ordinal(number) => match ordinals {
            Ordinals::PciBus => first_leaf(devices, |device| device.index == *number),
            Ordinals::Cuda(order) => order.get(*number as usize).and_then(|uuid| {
                first_leaf(devices, |d| d.uuid.as_ref() == Ok(uuid) || d.parent_uuid.as_ref() == Some(uuid))
            }),
        }
        .ok_or_else(|| format!("no GPU has the index {number}")),
        Entry::Gpu(prefix) => {
            let uuid = unique(prefix, devices.iter().filter_map(physical_uuid))?;
            first_leaf(devices, |device| physical_uuid(device) == Some(uuid))
                .ok_or_else(|| format!("no GPU has the UUID {prefix}"))
        }
        Entry::Mig(name) => find_slice(name, devices),
    }
}

/// A whole GPU, or the first slice of one whose MIG mode is on: that one CUDA takes for it.
fn first_leaf(devices: &[DeviceSnapshot], is_it: impl Fn(&DeviceSnapshot) -> bool) -> Option<usize> {
    (0..devices.len())
        .filter(|&index| devices.get(index).is_some_and(&is_it))
        .min_by_key(|&index| devices.get(index).and_then(|device| device.mig).map(|place| place.index))
}

/// The UUID of the GPU that a device is, or is a slice of.
fn physical_uuid(device: &DeviceSnapshot) -> Option<&GpuUuid> {
    match device.mig {
        None => device.uuid.as_ref().ok(),
        Some(_) => device.parent_uuid.as_ref(),
    }
}

/// The one UUID that begins with `prefix`.
fn unique<'a>(prefix: &str, uuids: impl Iterator<Item = &'a GpuUuid>) -> Result<&'a GpuUuid, String> {
    let mut matching: Vec<&GpuUuid> = uuids.filter(|uuid| uuid.as_str().starts_with(prefix)).collect();
    matching.sort_unstable();
    matching.dedup();
    match matching.as_slice() {
        [] => Err(format!("no device has a UUID that begins with {prefix}")),
        [uuid] => Ok(uuid),
        several => Err(format!("{} devices have a UUID that begins with {prefix}", several.len())),
    }
}

/// `MIG-<uuid>`, or the older `MIG-GPU-<uuid>/<gpu instance>/<compute instance>`.
fn find_slice(name: &str, devices: &[DeviceSnapshot]) -> Result<usize, String> {
    let slices = || devices.iter().filter(|device| device.mig.is_some()).filter_map(|d| d.uuid.as_ref().ok());
    let position = |uuid: &GpuUuid| devices.iter().position(|device| device.uuid.as_ref() == Ok(uuid));
    let failed = match unique(name, slices()) {
        Ok(uuid) => return position(uuid).ok_or_else(|| format!("no slice has the UUID {name}")),
        Err(why) => why,
    };
    let mut parts = name.trim_start_matches("MIG-").split('/');
    let (Some(parent), Some(gpu), Some(compute), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(failed);
    };
    let (Ok(gpu), Ok(compute)) = (gpu.parse::<u32>(), compute.parse::<u32>()) else { return Err(failed) };
    let parent = unique(parent, devices.iter().filter_map(|device| device.parent_uuid.as_ref()))?;
    devices
        .iter()
        .position(|device| {
            device.parent_uuid.as_ref() == Some(parent)
                && device.mig.is_some_and(|place| {
                    place.gpu_instance == Some(gpu) && place.compute_instance == Some(compute)
                })
        })
        .ok_or_else(|| format!("{parent} has no GPU instance {gpu} with compute instance {compute}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device::MigPlace;
    use crate::model::reading::Reason;
    use crate::tests::fuzz::fuzz;
    use proptest::prelude::*;

    const UUIDS: [&str; 6] = [
        "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1",
        "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
        "GPU-e429a63e-c61c-4795-b757-5132caeb8e70",
        "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98",
        "GPU-bbcd6503-5150-4e92-c266-97cc4390d04e",
        "GPU-472ea263-58d7-410d-cc82-f7fdece5bd28",
    ];

    fn device(index: u32, uuid: &str) -> DeviceSnapshot {
        DeviceSnapshot {
            index,
            mig: None,
            uuid: Ok(GpuUuid::new(uuid)),
            parent_uuid: None,
            name: Err(Reason::NotAsked),
            memory: Err(Reason::NotAsked),
            gpu_utilization: Err(Reason::NotAsked),
            memory_utilization: Err(Reason::NotAsked),
            compute_mode: Err(Reason::NotAsked),
            processes: Err(Reason::NotAsked),
            facts: Vec::new(),
        }
    }

    fn host() -> Vec<DeviceSnapshot> {
        (0..).zip(UUIDS).map(|(index, uuid)| device(index, uuid)).collect()
    }

    fn slice(parent: u32, place: u32, instance: u32, uuid: &str) -> DeviceSnapshot {
        DeviceSnapshot {
            mig: Some(MigPlace { index: place, gpu_instance: Some(instance), compute_instance: Some(0) }),
            parent_uuid: Some(GpuUuid::new(UUIDS[parent as usize])),
            ..device(parent, uuid)
        }
    }

    fn seen(text: &str) -> Vec<usize> {
        parse(text, &host(), &Ordinals::PciBus).devices
    }

    #[test]
    fn integers_follow_the_driver() {
        let cases: [(&str, &[usize]); 26] = [
            ("", &[]),
            ("-1", &[]),
            ("9", &[]),
            ("all", &[]),
            ("NoDevFiles", &[]),
            ("0", &[0]),
            ("0,0", &[]),
            ("0,00", &[]),
            ("0,-1,1", &[0]),
            ("0,9,1", &[0]),
            ("-1,0", &[]),
            ("+1,0", &[1, 0]),
            (" 1 , 0 ", &[1, 0]),
            ("1gpu2,2ampere", &[1, 2]),
            ("0, 1, 2, -1, 3", &[0, 1, 2]),
            ("0, 1, 2, 1", &[]),
            ("2, +3, -0, 5", &[2, 3, 0, 5]),
            ("one,two,3,4", &[]),
            ("4,3,two,one", &[4, 3]),
            ("0 1", &[0]),
            ("0;1", &[0]),
            ("0x1", &[0]),
            ("1.0", &[1]),
            ("01", &[1]),
            ("0,,1", &[0]),
            (",0", &[]),
        ];
        for (text, devices) in cases {
            assert_eq!(seen(text), devices, "{text:?}");
        }
        assert_eq!(seen("99999999999999999999"), [] as [usize; 0]);
    }

    #[test]
    fn uuids_may_be_cut_to_a_unique_prefix() {
        let cases: [(&str, &[usize]); 10] = [
            ("GPU-9e8d35e3", &[1]),
            ("GPU-e4,GPU-9e8d35e3", &[2, 1]),
            ("GPU-e4,GPU-9e8d35e3,GPU-472ea263", &[2, 1, 5]),
            ("GPU-123,GPU-9e8d35e3", &[]),
            ("GPU-9e8d35e3,GPU-123,GPU-47", &[1]),
            ("GPU-9e8d35e3,GPU-e,GPU-47", &[1]),
            ("GPU-9e8d35e3,GPU-47,GPU-9e8d35e3", &[]),
            ("GPU-9e8d35e3,GPU-9e8d", &[]),
            ("GPU-9e8d35e3, 2", &[1]),
            ("2,GPU-9e8d35e3", &[2]),
        ];
        for (text, devices) in cases {
            assert_eq!(seen(text), devices, "{text:?}");
        }
    }

    #[test]
    fn every_dropped_entry_has_a_reason() {
        let visible = parse("0,9,1", &host(), &Ordinals::PciBus);
        let why: Vec<(&str, &str)> =
            visible.dropped.iter().map(|dropped| (dropped.entry.as_str(), dropped.why.as_str())).collect();
        assert_eq!(
            why,
            [("9", "no GPU has the index 9"), ("1", "it comes after \"9\", which ends the list")]
        );
        assert_eq!(parse("0,0", &host(), &Ordinals::PciBus).dropped.len(), 2);
        assert_eq!(parse("", &host(), &Ordinals::PciBus).dropped, []);
    }

    #[test]
    fn slices_go_by_either_form_and_alone() {
        let mut devices = vec![
            slice(0, 0, 7, "MIG-aaaa0000-1111-2222-3333-444444444444"),
            slice(0, 1, 9, "MIG-aaaa1111-1111-2222-3333-444444444444"),
            device(1, UUIDS[1]),
        ];
        let seen = |text: &str, devices: &[DeviceSnapshot]| parse(text, devices, &Ordinals::PciBus).devices;
        assert_eq!(seen("MIG-aaaa1", &devices), [1]);
        assert_eq!(seen("MIG-aaaa", &devices), [] as [usize; 0]);
        assert_eq!(seen(&format!("MIG-{}/9/0", UUIDS[0]), &devices), [1]);
        assert_eq!(seen(&format!("MIG-{}/8/0", UUIDS[0]), &devices), [] as [usize; 0]);
        assert_eq!(seen("MIG-aaaa1,MIG-aaaa0", &devices), [1]);
        // A GPU with MIG on stands for its first slice, and nothing goes beside a slice.
        assert_eq!(seen("0", &devices), [0]);
        assert_eq!(seen("1,0", &devices), [0]);
        assert_eq!(seen("GPU-99", &devices), [0]);
        // Old drivers print the long form themselves.
        let long = format!("MIG-{}/1/0", UUIDS[0]);
        devices[0].uuid = Ok(GpuUuid::new(long.as_str()));
        assert_eq!(seen(&long, &devices), [0]);
    }

    #[test]
    fn cuda_order_counts_its_own_way() {
        let order = Ordinals::Cuda(vec![GpuUuid::new(UUIDS[3]), GpuUuid::new(UUIDS[0])]);
        assert_eq!(parse("0,1", &host(), &order).devices, [3, 0]);
        assert_eq!(parse("2", &host(), &order).devices, [] as [usize; 0]);
        assert!(has_ordinals("1,0") && has_ordinals("3x"));
        assert!(!has_ordinals("GPU-1") && !has_ordinals("") && !has_ordinals("-1"));
    }

    /// The rules again, in the plain words of the driver's documentation and PyTorch's tests, for integers.
    fn by_hand(text: &str, count: u32) -> Vec<usize> {
        let mut numbers: Vec<i128> = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let mut digits = String::new();
            for (position, c) in part.chars().enumerate() {
                if c.is_ascii_digit() || (position == 0 && (c == '+' || c == '-')) {
                    digits.push(c);
                } else {
                    break;
                }
            }
            let number = digits.parse::<i128>().unwrap_or(-1);
            if number < 0 {
                break;
            }
            if numbers.contains(&number) {
                return Vec::new();
            }
            numbers.push(number);
        }
        numbers.iter().take_while(|n| **n < i128::from(count)).map(|n| *n as usize).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60_000))]

        #[test]
        fn integers_agree_with_the_plain_words(text in "[ +-]?[0-9a-c]{0,3}(,[ +-]{0,2}[0-9]{0,2}[x.; ]?){0,5}") {
            prop_assert_eq!(seen(&text), by_hand(&text, 6));
        }
    }

    /// Entries of every kind, whole and cut, between anything else.
    fn entry() -> impl Strategy<Value = String> {
        let uuid = prop::sample::select(UUIDS.to_vec());
        let cut = (uuid, 0usize..50).prop_map(|(uuid, end)| uuid[..end.min(uuid.len())].to_owned());
        prop_oneof![
            2 => "[ +-]{0,2}[0-9]{0,25}",
            3 => cut.clone(),
            1 => (cut, "/[0-9]{1,3}/[0-9]{1,20}").prop_map(|(uuid, place)| format!("MIG-{uuid}{place}")),
            1 => "(GPU-|MIG-|MIG-GPU-)?\\PC{0,20}",
        ]
    }

    #[test]
    fn fuzz_any_visible_devices_name_each_gpu_once_and_say_what_is_dropped() {
        fuzz(5_000, |config| {
            proptest!(config, |(entries in prop::collection::vec(entry(), 0..6), separator in "[,;]{1,2}")| {
                let text = entries.join(&separator);
                let visible = parse(&text, &host(), &Ordinals::PciBus);
                let unique: std::collections::BTreeSet<usize> = visible.devices.iter().copied().collect();
                prop_assert_eq!(unique.len(), visible.devices.len());
                prop_assert!(unique.iter().all(|device| *device < 6));
                prop_assert!(visible.dropped.iter().all(|dropped| !dropped.why.is_empty()));
                // Every entry names a GPU or is dropped.
                let named = visible.devices.len() + visible.dropped.len();
                prop_assert!(named >= text.split(',').count() || text.trim().is_empty() || text.trim() == "-1", "{}", text);
            });
        });
    }
}
