//! A trainer in Rust that watches itself: tags around its phases, step times, a line for each window.
//!
//! `cargo run --example collector`; on a machine without a GPU,
//! `cargo run -q -p fake-nvml --bin simulate -- four-gpus-two-full -- target/debug/examples/collector`.

#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::time::{Duration, Instant};

use gpurun::Collector;

fn main() -> Result<(), gpurun::CollectorError> {
    let collector = Collector::builder()
        .interval(Duration::from_millis(100))
        .window(Duration::from_secs(1))
        .on_window(|window| {
            // Each window has the numbers of its own second; what is unknown is absent, never 0.
            let mean = |key: &str| window.get(key).and_then(|stats| stats.mean);
            println!(
                "{:.1} s: job at {:.0} % of a core, host at {:.0} %",
                window.duration_s,
                mean("job/cpu_percent (%)").unwrap_or(f64::NAN),
                mean("host/cpu_percent (%)").unwrap_or(f64::NAN),
            );
            true
        })
        .start()?;

    for epoch in 1..=2 {
        let _epoch = collector.tag(&format!("epoch {epoch}"))?;
        {
            let _train = collector.tag("train")?;
            for step in 0..5 {
                let _step = collector.timed_step(step);
                busy(Duration::from_millis(150));
            }
            collector.log("loss", 1.0 / f64::from(epoch), None);
            // nvitop's keys: `run/epoch 1/train/<scope>/<metric (unit)>/<mean|min|max|last>`.
            for (key, value) in collector.collect()?.to_map() {
                if key.contains("job/cpu_percent") || key.contains("gpu_utilization") || key.contains("loss")
                {
                    println!("  {key} = {value:.2}");
                }
            }
        }
        let _evaluate = collector.tag("evaluate")?;
        std::thread::sleep(Duration::from_millis(300));
    }

    let ended = collector.stop()?;
    println!("{:.1} s in all", ended.duration_s);
    Ok(())
}

/// Stands for the forward and the backward pass.
fn busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::black_box(begin.elapsed());
    }
}
