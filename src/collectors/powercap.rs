//! Energy of the CPU packages and of their memory, from the kernel's powercap counters (Intel and AMD).

use std::fs;
use std::path::Path;

use super::procfs::file::{Buffer, FileError, KernelFile};
use crate::model::time::Mono;
use crate::sys::text;

/// What a counter is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// CPU packages: cores, caches and what else is on the chip.
    Package,
    /// Memory modules, where the package counts them apart.
    Dram,
}

/// No package and its memory draw so much (W): a counter that rises faster has begun anew.
const ANY_POWER: f64 = 10_000.0;

/// One counter.
#[derive(Debug)]
struct Zone {
    domain: Domain,
    energy: KernelFile,
    /// The counter goes back to 0 after this value, µJ.
    range: u64,
    last: Option<(Mono, u64)>,
    /// Since the first read, µJ.
    total: u64,
}

impl Zone {
    fn read(&mut self, now: Mono, buffer: &mut Buffer) -> Option<()> {
        let value = text::number(text::words(self.energy.read(buffer).ok()?).next()?)?;
        if let Some((before, last)) = self.last {
            let step = match value.checked_sub(last) {
                Some(step) => step,
                None => self.range.saturating_sub(last).saturating_add(value),
            };
            if step as f64 / 1e6 <= ANY_POWER * now.seconds_since(before) {
                self.total = self.total.saturating_add(step);
            }
        }
        self.last = Some((now, value));
        Some(())
    }
}

/// The counters of all packages.
#[derive(Debug, Default)]
pub struct Powercap {
    zones: Vec<Zone>,
    refused: bool,
}

impl Powercap {
    /// Opens the counters. `sys_root` is normally `/sys`.
    pub fn find(sys_root: &Path) -> Self {
        let mut found = Self::default();
        let Ok(entries) = fs::read_dir(sys_root.join("class/powercap")) else { return found };
        for entry in entries.flatten() {
            // `intel-rapl-mmio:0` counts once more what `intel-rapl:0` does.
            if !entry.file_name().to_string_lossy().starts_with("intel-rapl:") {
                continue;
            }
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let domain = match name.trim() {
                "dram" => Domain::Dram,
                name if name.starts_with("package-") => Domain::Package,
                // `core` and `uncore` are parts of a package, `psys` is more than packages.
                _ => continue,
            };
            match KernelFile::open(&entry.path().join("energy_uj")) {
                Ok(energy) => {
                    let range = fs::read_to_string(entry.path().join("max_energy_range_uj"));
                    let range = range.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
                    found.zones.push(Zone { domain, energy, range, last: None, total: 0 });
                }
                Err(FileError::Denied) => found.refused = true,
                Err(_) => {}
            }
        }
        if found.refused {
            // A sum without some of its parts is no sum.
            found.zones.clear();
        }
        found
    }

    /// There are counters, and this user may not read them.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether there is a counter.
    pub fn has(&self, domain: Domain) -> bool {
        self.zones.iter().any(|zone| zone.domain == domain)
    }

    /// Joules of all packages since the first read; `None` where a counter cannot be read.
    pub fn read(&mut self, domain: Domain, now: Mono, buffer: &mut Buffer) -> Option<f64> {
        let mut sum = 0;
        for zone in self.zones.iter_mut().filter(|zone| zone.domain == domain) {
            zone.read(now, buffer)?;
            sum += zone.total;
        }
        Some(sum as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn zone(root: &Path, zone: &str, name: &str, energy: u64) -> PathBuf {
        let path = root.join("class/powercap").join(zone);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("name"), format!("{name}\n")).unwrap();
        fs::write(path.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(path.join("energy_uj"), format!("{energy}\n")).unwrap();
        path.join("energy_uj")
    }

    fn at(second: u64) -> Mono {
        Mono(second * 1_000_000_000)
    }

    #[test]
    fn packages_are_summed_and_nothing_counts_twice() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let first = zone(root, "intel-rapl:0", "package-0", 5_000_000);
        let second = zone(root, "intel-rapl:1", "package-1", 262_143_000_000);
        let dram = zone(root, "intel-rapl:0:1", "dram", 7);
        for (name, kind) in [
            ("intel-rapl:0:0", "core"),
            ("intel-rapl-mmio:0", "package-0"),
            ("intel-rapl:2", "psys"),
            ("dtpm", "package-0"),
        ] {
            zone(root, name, kind, 1);
        }
        let (mut found, mut buffer) = (Powercap::find(root), Buffer::default());
        assert!(found.has(Domain::Package) && found.has(Domain::Dram) && !found.is_refused());
        assert_eq!(found.read(Domain::Package, at(1), &mut buffer), Some(0.0));
        assert_eq!(found.read(Domain::Dram, at(1), &mut buffer), Some(0.0));
        fs::write(first, "105000000\n").unwrap();
        // It wraps: 328,850 µJ to its end and as many after it as stand there.
        fs::write(second, "49671150\n").unwrap();
        fs::write(&dram, "20000007\n").unwrap();
        assert_eq!(found.read(Domain::Package, at(2), &mut buffer), Some(150.0));
        assert_eq!(found.read(Domain::Dram, at(2), &mut buffer), Some(20.0));
        // It has begun anew: no wrap is so fast.
        fs::write(&dram, "3\n").unwrap();
        assert_eq!(found.read(Domain::Dram, at(3), &mut buffer), Some(20.0));
        fs::write(&dram, "soon\n").unwrap();
        assert_eq!(found.read(Domain::Dram, at(4), &mut buffer), None);
    }

    #[test]
    fn without_counters_there_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let found = Powercap::find(dir.path());
        assert!(!found.has(Domain::Package) && !found.is_refused());
    }
}
