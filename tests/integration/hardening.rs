//! How the executable is linked: position-independent, with its relocations read-only after the start.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

use crate::support;

const ET_DYN: u16 = 3;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const DT_FLAGS: u64 = 30;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_BIND_NOW: u64 = 8;
const DF_1_NOW: u64 = 1;
const DF_1_PIE: u64 = 0x0800_0000;

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

#[test]
fn the_executable_is_position_independent_with_full_relro() {
    let elf = std::fs::read(support::gpurun()).unwrap();
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "a little-endian 64-bit ELF file");
    assert_eq!(number::<2>(&elf, 16), u64::from(ET_DYN));
    let (headers, size, count) = (number::<8>(&elf, 32), number::<2>(&elf, 54), number::<2>(&elf, 56));
    let header = |n: u64| place(headers + n * size);
    let find = |kind: u32| (0..count).map(header).find(|at| number::<4>(&elf, *at) == u64::from(kind));
    assert!(find(PT_GNU_RELRO).is_some(), "relocations are read-only after the start");
    let dynamic = find(PT_DYNAMIC).unwrap();
    let (start, length) = (place(number::<8>(&elf, dynamic + 8)), place(number::<8>(&elf, dynamic + 32)));
    let entries: Vec<(u64, u64)> =
        elf[start..start + length].chunks_exact(16).map(|e| (number::<8>(e, 0), number::<8>(e, 8))).collect();
    let flags = |tag: u64| entries.iter().filter(|e| e.0 == tag).fold(0, |all, e| all | e.1);
    assert!(flags(DT_FLAGS) & DF_BIND_NOW != 0 || flags(DT_FLAGS_1) & DF_1_NOW != 0, "bound at the start");
    assert!(flags(DT_FLAGS_1) & DF_1_PIE != 0);
}
