//! GPUs without memory of their own (GB10, N1X, Jetson): what the host says instead of the driver.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{CallResult, Fault};
use super::{Handle, MemoryInfo, Nvml};

/// The host's memory in bytes, as far as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// `MemTotal`, or a cgroup's limit where that is smaller.
    pub total: u64,
    /// `MemAvailable`, or what the cgroup leaves where that is less.
    pub available: u64,
}

/// Where the budget of a GPU with unified memory comes from.
#[derive(Clone)]
pub struct HostMemorySource(Arc<dyn Fn() -> Option<HostMemory> + Send + Sync>);

impl HostMemorySource {
    /// Asks this function at every read; it should not allocate.
    pub fn new(read: impl Fn() -> Option<HostMemory> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// `meminfo` under this root, without any cgroup.
    pub fn proc(root: &Path) -> Self {
        let path: PathBuf = root.join("meminfo");
        Self::new(move || meminfo(&path))
    }

    /// The host's memory now.
    pub fn read(&self) -> Option<HostMemory> {
        (self.0)()
    }
}

impl Default for HostMemorySource {
    fn default() -> Self {
        Self::proc(Path::new("/proc"))
    }
}

impl fmt::Debug for HostMemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostMemorySource")
    }
}

/// `MemTotal` and `MemAvailable` of a `meminfo` file.
pub fn meminfo(path: &Path) -> Option<HostMemory> {
    // Both lines stand within the first hundred bytes of the file.
    let mut buffer = [0_u8; 1024];
    let mut length = 0;
    let mut file = File::open(path).ok()?;
    loop {
        match file.read(buffer.get_mut(length..)?) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let text = buffer.get(..length)?;
    Some(HostMemory { total: kibibytes(text, b"MemTotal:")?, available: kibibytes(text, b"MemAvailable:")? })
}

fn kibibytes(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(key))?;
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    let value =
        digits.fold(0_u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    value.checked_mul(1024)
}

/// Whether the product is known to have no memory of its own, whatever the driver reports as its memory: some
/// answer with a carve-out, some with all of the host's.
fn shares_by_name(name: &str) -> bool {
    const PRODUCTS: [&str; 5] = ["GB10", "N1X", "Thor", "Orin", "Xavier"];
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| PRODUCTS.iter().any(|p| word.eq_ignore_ascii_case(p)))
}

impl Nvml {
    /// Whether the device's memory is the host's. `memory` is what the driver says of it.
    ///
    /// A memory call that is not supported proves nothing alone (old boards have that too): the product's name or
    /// address translation through the CPU's page tables (ATS) must agree.
    pub(crate) fn shares_host_memory(&self, device: Handle, memory: &CallResult<MemoryInfo>) -> bool {
        /// `NVML_DEVICE_ADDRESSING_MODE_ATS`.
        const ATS: u32 = 2;
        if self.name(device).is_ok_and(|name| shares_by_name(&name)) {
            return true;
        }
        let silent = match memory {
            Ok(memory) => memory.total == 0,
            Err(fault) => fault.is_permanent(),
        };
        silent && self.addressing_mode(device) == Ok(ATS)
    }

    /// The host's memory, for devices that share it.
    pub(crate) fn host_memory(&self) -> CallResult<HostMemory> {
        self.host_memory.read().ok_or(Fault::Implausible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_whole_words() {
        assert!(shares_by_name("NVIDIA GB10"));
        assert!(shares_by_name("NVIDIA N1X (Laptop)"));
        assert!(!shares_by_name("NVIDIA GB100"));
        assert!(!shares_by_name("NVIDIA GH200 480GB"));
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meminfo");
        std::fs::write(&path, "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\n").unwrap();
        assert_eq!(meminfo(&path), Some(HostMemory { total: 1_024_000, available: 614_400 }));
        std::fs::write(&path, "MemTotal:       1000 kB\n").unwrap();
        assert_eq!(meminfo(&path), None);
        assert_eq!(meminfo(Path::new("/nonexistent/meminfo")), None);
    }
}
