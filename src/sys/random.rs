//! Names that cannot be foreseen.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Sixteen random hexadecimal digits.
///
/// # Errors
/// The kernel has no random numbers (before 3.17).
pub fn token() -> io::Result<String> {
    let mut random = [0_u8; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}
