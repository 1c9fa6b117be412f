//! Parquet files that are damaged.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

/// A Parquet file of each layout, and its rows.
fn file(layout: Layout) -> &'static (Vec<u8>, Vec<ReadRow>) {
    static FILES: [OnceLock<(Vec<u8>, Vec<ReadRow>)>; 2] = [OnceLock::new(), OnceLock::new()];
    FILES[usize::from(layout == Layout::Wide)].get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let run = run_info(2, None);
        let settings = WriterSettings { layout, ..settings(Mode::CreateNew) };
        assert_clean(&write(&["m.parquet"], dir.path(), &settings, &run, batches(&run, 20)));
        let path = dir.path().join("m.parquet");
        (fs::read(&path).unwrap(), read(&path).0)
    })
}

/// The rows of a file with this content, or what was said.
fn rows_of(bytes: &[u8]) -> Result<Vec<ReadRow>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.parquet");
    fs::write(&path, bytes).unwrap();
    let log = internals::rows(&path).map_err(|error| error.to_string())?;
    log.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

#[test]
fn fuzz_a_damaged_parquet_file_is_one_line_and_no_row_is_changed_in_silence() {
    fuzz(1000, |config| {
        proptest!(config, |(at in any::<prop::sample::Index>(),
            near_the_end in any::<bool>(),
            change in prop_oneof![
                (1u8..).prop_map(|flip| (0usize, vec![flip])),
                (1usize..200, prop::collection::vec(any::<u8>(), 0..40)),
                (64usize..4096).prop_map(|length| (length, vec![0; length])),
            ],
            wide in any::<bool>())| {
            let (bytes, expected) = file(if wide { Layout::Wide } else { Layout::Long });
            // What describes the rows is at the end, and takes less room than they.
            let from = if near_the_end { bytes.len().saturating_sub(4000) } else { 0 };
            let at = from + at.index(bytes.len() - from);
            let mut damaged = bytes.clone();
            match change {
                (0, flip) => damaged[at] ^= flip[0],
                (removed, inserted) => {
                    let end = (at + removed).min(damaged.len());
                    damaged.splice(at..end, inserted);
                }
            }
            match rows_of(&damaged) {
                Ok(rows) => prop_assert!(&rows == expected, "rows are changed in silence"),
                Err(said) => prop_assert!(said.starts_with("cannot read ") && !said.contains('\n'), "{}", said),
            }
        });
    });
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let (bytes, _) = file(Layout::Long);
    for length in (0..bytes.len()).step_by(97) {
        assert!(rows_of(&bytes[..length]).unwrap_err().starts_with("cannot read "));
    }
}
