//! Steady state allocates nothing: the sampler on a real tree, and the fold, under an allocator that counts for each
//! thread.

#![allow(clippy::print_stdout, reason = "the cost is shown, and never judged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::model::id::SeriesId;
use crate::model::mark::{Mark, MarkOp};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::{ClockPair, Mono, Wall};
use crate::model::window::RowKind;
use crate::sampling::{Due, ProcessDetail, Sampler, SamplerSettings, TreeRoot};
use crate::summary::Totals;
use crate::windowing::{Fold, FoldSettings};

thread_local! {
    /// Of this thread: tests of one program run side by side, and the runner allocates beside them.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// One more allocation of this thread.
fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

/// Bytes that this thread has taken and not given back.
fn live() -> isize {
    LIVE.with(Cell::get)
}

fn take(bytes: usize) {
    LIVE.with(|live| live.set(live.get() + bytes.cast_signed()));
}

fn give_back(bytes: usize) {
    LIVE.with(|live| live.set(live.get() - bytes.cast_signed()));
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        take(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        give_back(layout.size());
        take(size);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A shell with `children` children that wait for the end of their input.
struct Job(Child);

impl Job {
    fn with_children(children: usize) -> Self {
        // `read` waits on the pipe that the test holds: nothing outlives the test.
        let script = format!(
            "i=0; while [ $i -lt {children} ]; do sh -c 'read x; :' & i=$((i+1)); done; echo up; read x; wait"
        );
        let script = script.replace("read x; :' &", "read x; :' <&3 &");
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec 3<&0; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        Self(child)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

fn steady(children: usize, detail: ProcessDetail, descriptors: Option<usize>) {
    let job = Job::with_children(children);
    let mut settings = SamplerSettings::new(TreeRoot::Pids(vec![i32::try_from(job.0.id()).unwrap()]));
    settings.processes = detail;
    settings.descriptors = descriptors;
    let mut sampler = Sampler::new(settings).unwrap();
    let mut initial = sampler.initial_series().into_iter();
    let (processes, _) = initial.find(|(_, info)| info.metric == MetricId::JobProcesses).unwrap();
    let (mut sample, mut changes) = (Sample::default(), Vec::new());
    let mut at = 0;
    let mut take = |sample: &mut Sample| {
        at += 1_000_000_000;
        sampler.sample(Mono(at), Due::unscheduled(), || None, sample, &mut changes);
        let count = changes.len();
        changes.clear();
        count
    };
    take(&mut sample);
    let count = Reading::Value((children + 1) as f64);
    assert!(sample.readings.contains(&(processes, count)), "all of the job is seen");
    while take(&mut sample) > 0 {}
    // The host's own files may still outgrow a buffer once.
    for _ in 0..3 {
        take(&mut sample);
    }
    const SAMPLES: u32 = 200;
    let before = ALLOCATIONS.get();
    let start = thread_cpu();
    for _ in 0..SAMPLES {
        take(&mut sample);
    }
    let time = (thread_cpu() - start) / SAMPLES;
    let allocated = ALLOCATIONS.get() - before;
    println!("{} processes: {time:?} of CPU a sample", children + 1);
    assert_eq!(allocated, 0, "{allocated} allocations in {SAMPLES} samples");
}

#[test]
fn one_process() {
    steady(0, ProcessDetail::Gpu, None);
}

#[test]
fn fifty_one_processes() {
    steady(50, ProcessDetail::Gpu, None);
}

#[test]
fn fifty_one_processes_each_with_series() {
    steady(50, ProcessDetail::All, None);
}

#[test]
fn fifty_one_processes_without_descriptors() {
    steady(50, ProcessDetail::All, Some(0));
}

/// 300 series, a value and a peak each, with three nested tags open.
#[test]
fn the_fold() {
    const SECOND: u64 = 1_000_000_000;
    const SAMPLES: u64 = 1000;
    let settings = FoldSettings {
        window: Duration::from_secs(1_000_000),
        root_tag: Arc::from("run"),
        rank: None,
        every_n_steps: 50,
        slack: Duration::from_millis(300),
    };
    let mut fold = Fold::new(settings, Mono(0));
    for number in 0..300 {
        let metric = if number % 2 == 0 { MetricId::HostMemoryUsed } else { MetricId::HostDiskRead };
        let pace = Duration::from_secs(1);
        let info = SeriesInfo { metric, label: None, device: None, process: None, pace };
        fold.open_series(SeriesId(number), Arc::new(info));
    }
    for tag in ["train", "epoch", "batch"] {
        fold.mark(Mark { stack: Fold::OWN, at: Mono(1), op: MarkOp::Begin { tag: Arc::from(tag) } }).unwrap();
    }
    let mut sample = Sample::default();
    let mut out = Vec::new();
    let mut take = |fold: &mut Fold, second: u64| {
        sample.clear(Mono(second * SECOND));
        for number in 0..300 {
            sample.push(SeriesId(number), Reading::Value(second as f64));
            sample.push(SeriesId(number), Reading::Peak(second as f64));
        }
        fold.sample(&sample);
        fold.advance(ClockPair { mono: Mono(second * SECOND), wall: Wall(0) }, &mut out);
    };
    for second in 1..10 {
        take(&mut fold, second);
    }
    let before = ALLOCATIONS.get();
    let start = thread_cpu();
    for second in 10..10 + SAMPLES {
        take(&mut fold, second);
    }
    let time = (thread_cpu() - start) / u32::try_from(SAMPLES).unwrap();
    let allocated = ALLOCATIONS.get() - before;
    println!("300 series in 4 spans: {time:?} of CPU a sample");
    assert_eq!(allocated, 0, "{allocated} allocations in {SAMPLES} samples");
    let collected = fold.collect(Fold::OWN, Mono((10 + SAMPLES) * SECOND));
    assert_eq!((&*collected.tag, collected.rows.len()), ("run/train/epoch/batch", 300));
    assert!(
        collected.rows.iter().all(|row| u64::from(row.stats.samples) >= SAMPLES && row.stats.missing == 0)
    );
}

/// 10,000 windows of 100 series, a tag and a scalar of the job in each, and processes that come and go: what is kept is the
/// same after the last as after the thousandth.
#[test]
fn memory_is_flat_over_windows() {
    const SECOND: u64 = 1_000_000_000;
    let settings = FoldSettings {
        window: Duration::from_secs(1),
        root_tag: Arc::from("run"),
        rank: None,
        every_n_steps: 50,
        slack: Duration::from_millis(300),
    };
    let mut fold = Fold::new(settings, Mono(0));
    let mut totals = Totals::new(None);
    let info = |metric| {
        Arc::new(SeriesInfo {
            metric,
            label: None,
            device: None,
            process: None,
            pace: Duration::from_secs(1),
        })
    };
    for number in 0..100 {
        let metric = if number % 2 == 0 { MetricId::HostMemoryUsed } else { MetricId::HostDiskRead };
        fold.open_series(SeriesId(number), info(metric));
    }
    let mut sample = Sample::default();
    let mut out = Vec::new();
    let (mut windows, mut at_first) = (0_u64, 0);
    for second in 0..10_100 {
        let now = Mono(second * SECOND);
        sample.clear(now);
        for number in 0..100 {
            sample.push(SeriesId(number), Reading::Value(second as f64));
        }
        let mark = |op| Mark { stack: Fold::OWN, at: now, op };
        fold.mark(mark(MarkOp::Begin { tag: Arc::from("batch") })).unwrap();
        let values = vec![(Arc::from("loss"), 0.5)];
        fold.mark(mark(MarkOp::Log { step: None, values })).unwrap();
        fold.mark(mark(MarkOp::End { tag: None })).unwrap();
        // A process that lives for one sample.
        let process = SeriesId(100);
        fold.open_series(process, info(MetricId::ProcessMemoryRss));
        sample.push(process, Reading::Value(1.0));
        fold.sample(&sample);
        fold.close_series(process, now);
        fold.advance(ClockPair { mono: now, wall: Wall(0) }, &mut out);
        // Its number is free again before the next one takes it.
        while fold.freed().count() == 0 {
            fold.advance(ClockPair { mono: Mono(now.0 + SECOND / 2), wall: Wall(0) }, &mut out);
        }
        for batch in out.drain(..) {
            windows += u64::from(batch.kind == RowKind::Window);
            totals.add(&batch);
        }
        if second == 1000 {
            at_first = live();
        }
    }
    assert!(windows >= 10_000);
    let grown = live() - at_first;
    assert!(grown.abs() < 4096, "{grown} bytes more are kept after {windows} windows");
}
