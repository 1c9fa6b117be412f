//! Which devices a run watches, and how they are found once the driver is open.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::collectors::nvml::{Nvml, NvmlError};
use crate::model::device::{DeviceIdentity, ProbeRequest};

use super::load_check::LoadCheck;
use crate::selection::flow::{self, Surroundings};

/// The devices of a run.
pub enum Watched {
    /// Those that gpurun chose, or had to find before the job; the driver is open already.
    Known(Box<Nvml>, Vec<DeviceIdentity>),
    /// Those that the job sees by `CUDA_VISIBLE_DEVICES`. The library is opened once the check has loaded it.
    Visible(Surroundings, Option<LoadCheck>),
    /// All of the host's.
    All(Option<LoadCheck>),
}

/// What else is known once the devices are found.
#[derive(Debug, Default)]
pub struct Finding {
    /// The driver's version.
    pub driver: Option<String>,
    /// What the user is to be told.
    pub notes: Vec<String>,
}

impl Watched {
    /// Opens the driver where it is not open, and names the devices. Runs on the reader's thread.
    pub fn find(
        self,
        library: Option<&Path>,
        finding: &Mutex<Finding>,
    ) -> Result<(Nvml, Vec<Arc<DeviceIdentity>>), NvmlError> {
        let (nvml, devices, notes) = match self {
            Watched::Known(nvml, devices) => (*nvml, devices, Vec::new()),
            Watched::Visible(surroundings, check) => {
                let nvml = open(library, check)?;
                let (devices, notes) = seen_by_the_job(&nvml, &surroundings)?;
                (nvml, devices, notes)
            }
            Watched::All(check) => {
                let nvml = open(library, check)?;
                let (mut devices, notes) = seen_by_the_job(&nvml, &Surroundings::of_the_host())?;
                // No job counts these: they are the host's.
                devices.iter_mut().for_each(|device| device.cuda = None);
                (nvml, devices, notes)
            }
        };
        let mut finding = finding.lock().unwrap_or_else(PoisonError::into_inner);
        finding.driver = nvml.driver_version().map(str::to_owned);
        finding.notes = notes.into_iter().chain(same_uuid(&devices)).collect();
        Ok((nvml, devices.into_iter().map(Arc::new).collect()))
    }
}

/// What to say of devices that have one UUID: everything that goes by it cannot tell them apart.
fn same_uuid(devices: &[DeviceIdentity]) -> Option<String> {
    let twice =
        |device: &&DeviceIdentity| devices.iter().filter(|other| other.uuid == device.uuid).count() > 1;
    let labels: Vec<String> = devices.iter().filter(twice).map(DeviceIdentity::gpu_label).collect();
    let together = labels.join(", ");
    (!labels.is_empty()).then(|| format!("{together} have the same UUID: they are told apart by their index"))
}

/// Opens the driver, after the check that its library can be loaded.
fn open(library: Option<&Path>, check: Option<LoadCheck>) -> Result<Nvml, NvmlError> {
    if let Some(check) = check {
        check.wait()?;
    }
    Nvml::open(library)
}

/// The devices by the environment, with what is to be said about entries that name none.
fn seen_by_the_job(
    nvml: &Nvml,
    surroundings: &Surroundings,
) -> Result<(Vec<DeviceIdentity>, Vec<String>), NvmlError> {
    let mut failed = None;
    let mut probe = |request: &ProbeRequest| {
        nvml.probe(request).map_err(|error| {
            let text = error.to_string();
            failed = Some(error);
            text
        })
    };
    match flow::watched_devices(surroundings, &mut probe) {
        Ok(watched) => Ok((watched.devices, watched.notes)),
        Err(error) => match (failed, error) {
            (Some(error), _) => Err(error),
            (None, error) => Ok((Vec::new(), vec![error.to_string()])),
        },
    }
}
