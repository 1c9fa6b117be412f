//! Links the simulated driver library as `gpurun` is linked: with the unwinder inside. The real driver library needs no
//! `libgcc_s.so.1` either, so that every program that loads this one pays for a driver and not for a second library.

#[path = "../../build.rs"]
#[allow(dead_code, reason = "its `main` is that of the other package")]
mod gpurun;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../build.rs");
    if !gpurun::is_for_this_linker() {
        return;
    }
    if let Some(directory) = gpurun::static_unwinder() {
        println!("cargo:rustc-cdylib-link-arg=-L{}", directory.display());
    }
}
