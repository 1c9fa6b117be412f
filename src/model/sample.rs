//! One sample: what was read at one instant, for dense series numbers.

use super::id::SeriesId;
use super::reading::Reading;
use super::time::Mono;

/// The reads of one instant. The buffer is reused: `clear` keeps its memory.
///
/// A sample names only the series that were due at its instant; a series that is read at a slower
/// pace is absent from most samples, which is not the same as [`Reading::Missing`].
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// When the values were read.
    pub at: Mono,
    /// The values, in no particular order; a series may have a `Value` and a `Peak`.
    pub readings: Vec<(SeriesId, Reading)>,
}

impl Sample {
    /// Empties the sample for the instant `at`, keeping its memory.
    pub fn clear(&mut self, at: Mono) {
        self.at = at;
        self.readings.clear();
    }

    /// Adds one reading.
    pub fn push(&mut self, id: SeriesId, reading: Reading) {
        self.readings.push((id, reading));
    }
}
