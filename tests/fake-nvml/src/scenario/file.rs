//! A scenario as a file: reading it, with its mistakes, and writing it.

use std::path::Path;

use super::{Gpu, Scenario, ScenarioError};
use crate::codes;

impl Scenario {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// A sentence: the file cannot be read, is not TOML, or has a key that no scenario has.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads TOML text. The file form has two keys more than the struct: a `[defaults]` table whose keys every
    /// `[[gpu]]` gets that does not have them, and `count` in a `[[gpu]]` for that many alike.
    ///
    /// # Errors
    /// A sentence: not TOML, an unknown key, an unknown error name, an impossible number.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        table.iter().try_for_each(|(key, value)| check_names(value, key))?;
        let defaults = match table.remove("defaults") {
            Some(toml::Value::Table(defaults)) => defaults,
            None => toml::Table::new(),
            Some(_) => return Err("`defaults` is not a table".into()),
        };
        let written = match table.remove("gpu") {
            Some(toml::Value::Array(written)) => written,
            None => Vec::new(),
            Some(_) => return Err("`gpu` is not a list of tables".into()),
        };
        let mut scenario: Self = toml::Value::Table(table).try_into().map_err(|error| error.to_string())?;
        for gpu in written {
            let toml::Value::Table(mut gpu) = gpu else {
                return Err("`gpu` is not a list of tables".into());
            };
            let count = match gpu.remove("count") {
                None => 1,
                Some(toml::Value::Integer(count @ 0..=1024)) => count as usize,
                Some(other) => return Err(format!("count = {other:?}: 0 to 1024")),
            };
            for (key, value) in &defaults {
                if !gpu.contains_key(key) {
                    gpu.insert(key.clone(), value.clone());
                }
            }
            // Read once, however many alike there are: every program that loads the library waits for this.
            let gpu: Gpu = toml::Value::Table(gpu).try_into().map_err(|error| error.to_string())?;
            scenario.gpu.resize(scenario.gpu.len() + count, gpu);
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// Finds the mistakes that types cannot.
    fn check(&self) -> Result<(), ScenarioError> {
        for fault in &self.fault {
            if let Some(name) = &fault.error
                && codes::by_name(name).is_none()
            {
                return Err(format!("unknown error {name:?}"));
            }
        }
        for (index, gpu) in self.gpu.iter().enumerate() {
            for process in gpu.process.iter().chain(gpu.mig.iter().flat_map(|mig| &mig.process)) {
                if process.pid.is_none() == process.pid_file.is_none() {
                    return Err(format!("gpu {index}: a process has either `pid` or `pid_file`"));
                }
                if let Some(kind) = &process.kind
                    && !["C", "G", "C+G", "M", "none"].contains(&kind.as_str())
                {
                    return Err(format!("gpu {index}: unknown process type {kind:?}"));
                }
            }
        }
        Ok(())
    }

    /// The scenario as TOML text that [`Scenario::parse`] reads back.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // The scenario has only string keys and finite numbers, so it always has a JSON form.
        let json = serde_json::to_value(self).expect("a scenario is plain data");
        let mut text = String::new();
        if let serde_json::Value::Object(map) = json {
            for (key, value) in map {
                if let Some(value) = inline_toml(&value) {
                    text.push_str(&format!("{} = {value}\n", toml_key(&key)));
                }
            }
        }
        text
    }

    /// The driver's version.
    #[must_use]
    pub fn driver(&self) -> &str {
        self.driver_version.as_deref().unwrap_or("550.54.15")
    }

    /// NVML's version.
    #[must_use]
    pub fn nvml(&self) -> String {
        self.nvml_version.clone().unwrap_or_else(|| format!("12.{}", self.driver()))
    }

    /// Whether field ids 251-273 have the numbers of driver 580.82 and later.
    #[must_use]
    pub fn renumbered_fields(&self) -> bool {
        let mut parts = self.driver().split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (580, 82)
    }

    /// The UUID of a GPU.
    #[must_use]
    pub fn uuid(&self, gpu: usize) -> String {
        match self.gpu.get(gpu).and_then(|gpu| gpu.uuid.clone()) {
            Some(uuid) => uuid,
            None => format!("GPU-{}", made_up_uuid(gpu as u64)),
        }
    }

    /// The UUID of a MIG slice by its place in the GPU's list.
    #[must_use]
    pub fn mig_uuid(&self, gpu: usize, place: usize) -> String {
        match self.gpu.get(gpu).and_then(|gpu| gpu.mig.get(place)).and_then(|mig| mig.uuid.clone()) {
            Some(uuid) => uuid,
            None => format!("MIG-{}", made_up_uuid((gpu as u64) << 8 | (place as u64 + 1) | 1 << 32)),
        }
    }
}

/// Text where a number belongs must be an error's name: a typo must not become an error of its own.
fn check_names(value: &toml::Value, key: &str) -> Result<(), ScenarioError> {
    const TEXT: &[&str] = &[
        "driver_version",
        "nvml_version",
        "missing_symbols",
        "clock_file",
        "epoch_file",
        "name",
        "uuid",
        "pci_bus_id",
        "serial",
        "profile",
        "pid_file",
        "type",
        "function",
        "error",
        "while_exists",
        "hang_while",
        "die",
    ];
    match value {
        toml::Value::String(_) if TEXT.contains(&key) => Ok(()),
        toml::Value::String(text) if key == "energy" && text == "from-power" => Ok(()),
        toml::Value::String(text) if key == "memory" && text == "N/A" => Ok(()),
        toml::Value::String(text) if codes::by_name(text).is_none() => {
            Err(format!("{key} = {text:?}: neither a number nor the name of an NVML error"))
        }
        toml::Value::Array(items) => items.iter().try_for_each(|item| check_names(item, key)),
        toml::Value::Table(map) => map.iter().try_for_each(|(key, value)| check_names(value, key)),
        _ => Ok(()),
    }
}

/// A UUID that looks like a real one and is the same in every run.
fn made_up_uuid(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6770_7572_756E_2121;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let (a, b) = (next(), next());
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xFFFF,
        a & 0xFFF,
        b >> 52,
        b & 0xFFFF_FFFF_FFFF
    )
}

fn toml_key(key: &str) -> String {
    if !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        key.to_owned()
    } else {
        serde_json::Value::from(key).to_string()
    }
}

/// A JSON value as an inline TOML one; null has no form there and is left out. JSON strings are valid TOML basic strings
/// except for DEL, which JSON leaves bare.
fn inline_toml(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(_) => Some(value.to_string().replace('\u{7f}', "\\u007f")),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Some(value.to_string()),
        serde_json::Value::Array(items) => {
            Some(format!("[{}]", items.iter().filter_map(inline_toml).collect::<Vec<_>>().join(", ")))
        }
        serde_json::Value::Object(map) => {
            let pairs = map
                .iter()
                .filter_map(|(key, value)| Some(format!("{} = {}", toml_key(key), inline_toml(value)?)));
            Some(format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", ")))
        }
    }
}
