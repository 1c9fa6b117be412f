//! Tests: the size of a page.

use super::{Builder, Row, RowKind, SourceAbout, write_html};

/// A day of a busy host: every window differs, so that nothing compresses by being the same.
fn day(gpus: i32, hours: i64) -> String {
    let mut builder = Builder::new();
    let source = builder.source(SourceAbout { name: "day.csv".to_owned(), ..SourceAbout::default() });
    let mut random = 1u64;
    let mut noise = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from((random >> 40) as u32) / f64::from(1 << 24)
    };
    for window in 1..=hours * 360 {
        let mut add = |scope, gpu: Option<i32>, metric, scale: f64| {
            let value = 0.3 * scale + 0.4 * scale * noise();
            let uuid = gpu.map(|gpu| format!("GPU-{gpu}"));
            let row = Row {
                time_us: 1_790_000_000_000_000 + window * 10_000_000,
                window_s: 10.0,
                run: "day",
                host: "node",
                rank: None,
                kind: RowKind::Window,
                tag: "run",
                step: None,
                scope,
                gpu,
                cuda: gpu,
                uuid: uuid.as_deref(),
                pid: None,
                process: None,
                metric,
                mean: Some(value),
                min: Some(value - 0.3 * scale * noise()),
                max: Some(value + 0.3 * scale * noise()),
                last: Some(value),
                samples: Some(10),
            };
            builder.add(source, &row);
        };
        for gpu in 0..gpus {
            for (metric, scale) in [
                ("gpu_utilization", 100.0),
                ("memory_used", 80_000.0),
                ("power_usage", 700.0),
                ("temperature", 90.0),
                ("throttled_power", 5.0),
                ("throttled_thermal", 5.0),
            ] {
                add("gpu", Some(gpu), metric, scale);
            }
            add("job", Some(gpu), "gpu_memory", 80_000.0);
        }
        for metric in ["cpu_percent", "memory_rss", "processes"] {
            add("job", None, metric, 1000.0);
        }
        for metric in ["cpu_percent", "memory_percent"] {
            add("host", None, metric, 100.0);
        }
        for metric in ["loss", "accuracy", "lr", "grad_norm"] {
            add("user", None, metric, 1.0);
        }
    }
    let mut page = String::new();
    write_html(&builder.finish(), &mut page).unwrap();
    page
}

#[test]
fn a_day_of_eight_gpus_is_a_small_page() {
    let page = day(8, 24);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    // The size follows the width of the charts, not the length of the run.
    let week = day(8, 7 * 24);
    assert!(week.len() < page.len() * 3 / 2, "{} against {} bytes", week.len(), page.len());
}
