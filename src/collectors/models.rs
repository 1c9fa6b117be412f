//! The models of the installed GPUs as the kernel driver lists them, without asking NVML.

use std::path::Path;

/// Where the NVIDIA kernel driver lists its devices.
pub const GPUS: &str = "/proc/driver/nvidia/gpus";

/// The model of each GPU; `None` where the kernel driver does not tell (WSL, no driver, no permission).
pub fn installed(root: &Path) -> Option<Vec<String>> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(root).ok()? {
        let text = std::fs::read_to_string(entry.ok()?.path().join("information")).ok()?;
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        models.push(model.trim().to_owned());
    }
    (!models.is_empty()).then_some(models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_must_tell_its_model() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(installed(dir.path()), None);
        for (bus, text) in
            [("0000:01:00.0", "Model: \t\t NVIDIA A100\nIRQ: 1\n"), ("0000:02:00.0", "IRQ: 2\nModel: T4\n")]
        {
            std::fs::create_dir(dir.path().join(bus)).unwrap();
            std::fs::write(dir.path().join(bus).join("information"), text).unwrap();
        }
        let mut models = installed(dir.path()).unwrap();
        models.sort();
        assert_eq!(models, ["NVIDIA A100", "T4"]);
        std::fs::create_dir(dir.path().join("0000:03:00.0")).unwrap();
        assert_eq!(installed(dir.path()), None);
    }
}
