//! Links the simulated driver library with the compiler's unwinder inside. The real driver library needs no
//! `libgcc_s.so.1` either, so that every program that loads this one pays for a driver and not for a second library.

use std::env::var;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../build.rs"]
#[allow(dead_code, reason = "its `main` is that of the other package")]
mod gpurun;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../build.rs");
    if !gpurun::is_for_this_linker() {
        return;
    }
    if let Some(directory) = static_unwinder() {
        println!("cargo:rustc-cdylib-link-arg=-L{}", directory.display());
    }
}

/// A directory in which the linker finds the compiler's static unwinder under the name of the shared one.
fn static_unwinder() -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let compiler = match var("RUSTC_LINKER") {
        Ok(linker) => linker,
        // Without a linker of its own a foreign target has no compiler that could be asked.
        Err(_) if var("HOST").ok()? == var("TARGET").ok()? => "cc".to_owned(),
        Err(_) => return None,
    };
    let answer = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim_end());
    // A compiler that has none answers with the bare name. A name with a space would have to be quoted in the script.
    let usable = path.is_absolute() && path.is_file() && !path.to_str()?.contains(char::is_whitespace);
    if !usable {
        return None;
    }
    let directory = Path::new(&var("OUT_DIR").ok()?).to_owned();
    let script = format!("/* In place of the shared unwinder. */\nINPUT({})\n", path.display());
    std::fs::write(directory.join("libgcc_s.so"), script).ok()?;
    Some(directory)
}
