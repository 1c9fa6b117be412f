//! How the `gpurun` executable is linked: at a fixed address, where that is known to do well.
//!
//! It starts before every job and inside every script that marks steps, and most of the time until its first line was
//! the dynamic loader's: an executable of this size that may be loaded anywhere has some 24,000 pointers, in 80 pages,
//! to be corrected at each start. The price is that its own code and constants are not moved about by address space
//! layout randomisation; stack, heap and libraries still are.
//!
//! The compiler's static unwinder in place of `libgcc_s.so.1` would save another tenth of a millisecond, and an executable
//! made on a new system would no longer run on one with glibc 2.34. The library and the tests are not touched.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if !is_for_this_linker() {
        return;
    }
    println!("cargo:rustc-link-arg-bin=gpurun=-no-pie");
}

/// Whether the target is one on which all of this was tried.
pub fn is_for_this_linker() -> bool {
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    let features = var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && !features.split(',').any(|feature| feature == "crt-static")
}
