//! Numbers for series: dense, handed out once, reused only after everyone is done with them.

use std::sync::Arc;

use crate::model::id::SeriesId;
use crate::model::series::SeriesInfo;

/// A series that came or went.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesChange {
    /// From now on samples may name it.
    Opened(SeriesId, Arc<SeriesInfo>),
    /// No later sample names it. Its number is not reused before [`Registry::release`].
    Closed(SeriesId),
}

/// The numbers in use.
#[derive(Debug, Default)]
pub struct Registry {
    series: Vec<Option<Arc<SeriesInfo>>>,
    free: Vec<SeriesId>,
}

impl Registry {
    /// Gives a series its number.
    pub fn open(&mut self, info: Arc<SeriesInfo>) -> SeriesId {
        match self.free.pop() {
            Some(id) => {
                self.series[id.index()] = Some(info);
                id
            }
            None => {
                let id = SeriesId(u32::try_from(self.series.len()).unwrap_or(u32::MAX));
                self.series.push(Some(info));
                id
            }
        }
    }

    /// Makes the number of a closed series free. A number that is not in use is left alone.
    pub fn release(&mut self, id: SeriesId) {
        if let Some(slot) = self.series.get_mut(id.index())
            && slot.take().is_some()
        {
            self.free.push(id);
        }
    }

    /// Every series with a number, in order of the numbers.
    pub fn all(&self) -> Vec<(SeriesId, Arc<SeriesInfo>)> {
        let numbered = self.series.iter().enumerate();
        numbered
            .filter_map(|(at, info)| Some((SeriesId(u32::try_from(at).ok()?), Arc::clone(info.as_ref()?))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::metric::MetricId;

    #[test]
    fn a_number_is_reused_only_after_its_release() {
        let info = |metric| {
            Arc::new(SeriesInfo {
                metric,
                label: None,
                device: None,
                process: None,
                pace: Duration::from_secs(1),
            })
        };
        let mut registry = Registry::default();
        let first = registry.open(info(MetricId::HostCpuPercent));
        let second = registry.open(info(MetricId::HostNetRx));
        assert_eq!((first, second), (SeriesId(0), SeriesId(1)));
        registry.release(first);
        registry.release(first);
        assert_eq!(registry.open(info(MetricId::HostNetTx)), first);
        assert_eq!(registry.open(info(MetricId::HostDiskRead)), SeriesId(2));
        assert_eq!(registry.all().len(), 3);
    }
}
