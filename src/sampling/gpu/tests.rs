//! The reader and its thread, on sources that a test scripts.

use std::sync::mpsc;

use super::*;
use crate::model::id::GpuUuid;
use crate::model::reading::Reading;
use crate::sampling::frame::DeviceFrame;

/// Long enough for any loaded machine; nothing passes or fails by it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A source that does to each frame what a test says.
struct Scripted<F>(F);

impl<F: FnMut(Mono, Depth, &mut GpuFrame)> Source for Scripted<F> {
    fn followed(&self) -> Vec<Followed> {
        let identity = DeviceIdentity {
            index: 0,
            mig: None,
            cuda: None,
            uuid: GpuUuid::new("GPU-0"),
            name: None,
            memory_total: None,
            facts: Vec::new(),
        };
        vec![Followed {
            identity: Arc::new(identity),
            role: Role::Whole,
            metrics: vec![
                MetricId::GpuTemperature,
                MetricId::GpuFanSpeed,
                MetricId::GpuEnergy,
                MetricId::GpuEnergyFromPower,
            ],
        }]
    }

    fn read(&mut self, at: Mono, depth: Depth, frame: &mut GpuFrame, _news: &mut Vec<GpuNews>) {
        (self.0)(at, depth, frame);
    }
}

fn reader(read: impl FnMut(Mono, Depth, &mut GpuFrame) + Send + 'static) -> GpuReader {
    GpuReader::spawn(move || Ok(Scripted(read))).unwrap()
}

/// Writes the instant that was asked for where a test can find it.
fn stamp(at: Mono, frame: &mut GpuFrame) {
    frame.devices.resize_with(1, DeviceFrame::default);
    frame.devices[0].readings.clear();
    frame.devices[0].readings.push((MetricId::GpuTemperature, Reading::Value(at.0 as f64)));
}

fn stamped(frame: &GpuFrame) -> f64 {
    match frame.devices[0].readings[0].1 {
        Reading::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_gives_a_frame_and_silence_gives_none() {
    let mut reader = reader(|at, _, frame| stamp(at, frame));
    assert!(reader.take(PATIENCE).is_none(), "nothing was asked for");
    for at in 1..20 {
        reader.request(Mono(at));
        let frame = reader.take(PATIENCE).unwrap();
        assert_eq!(stamped(frame), at as f64);
        assert!(frame.at >= Mono(at));
    }
    assert!(reader.stop(PATIENCE));
}

/// A reader whose frames wait for a word each, and which says how deep each one was.
fn gated(
    read: impl Fn(Mono, &mut GpuFrame) + Send + 'static,
) -> (GpuReader, mpsc::Sender<()>, mpsc::Receiver<Depth>) {
    let (go, gate) = mpsc::channel::<()>();
    let (seen, depths) = mpsc::channel();
    let reader = reader(move |at, depth, frame| {
        gate.recv().unwrap();
        read(at, frame);
        seen.send(depth).unwrap();
    });
    (reader, go, depths)
}

fn wait_until_busy(reader: &GpuReader) {
    while reader.busy_for().is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn a_late_frame_is_taken_at_a_later_tick() {
    let (mut reader, go, _depths) = gated(stamp);
    reader.request(Mono(1));
    wait_until_busy(&reader);
    assert!(reader.take(Duration::ZERO).is_none(), "it hangs");
    go.send(()).unwrap();
    assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 1.0);
    assert!(reader.take(PATIENCE).is_none(), "taken is taken");

    // While the next one hangs, a late one is better than none.
    reader.request(Mono(2));
    wait_until_busy(&reader);
    reader.request(Mono(3));
    reader.request(Mono(4));
    go.send(()).unwrap();
    while reader.shared.lock().asked.is_some() {
        std::thread::yield_now();
    }
    assert_eq!(stamped(reader.take(Duration::ZERO).unwrap()), 2.0);
    go.send(()).unwrap();
    assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 4.0, "the request that was not begun was replaced");
    assert!(reader.stop(PATIENCE));
}

#[test]
fn an_overtaken_frame_leaves_what_only_it_has_read() {
    let (mut reader, go, _depths) = gated(|at, frame| {
        stamp(at, frame);
        frame.devices[0].processes = None;
        if at.0 == 1 {
            frame.devices[0].readings.push((MetricId::GpuFanSpeed, Reading::Value(30.0)));
            frame.devices[0].processes = Some(Ok(Vec::new()));
        }
    });
    reader.request(Mono(1));
    wait_until_busy(&reader);
    reader.request(Mono(2));
    go.send(()).unwrap();
    go.send(()).unwrap();
    let frame = reader.take(PATIENCE).unwrap();
    let both =
        [(MetricId::GpuTemperature, Reading::Value(2.0)), (MetricId::GpuFanSpeed, Reading::Value(30.0))];
    assert_eq!(frame.devices[0].readings, both);
    assert_eq!(frame.devices[0].processes, Some(Ok(Vec::new())));
    assert!(frame.at >= Mono(2));
    assert!(reader.take(PATIENCE).is_none(), "nothing lags behind");
}

#[test]
fn a_replaced_request_for_everything_is_kept() {
    let (mut reader, go, depths) = gated(stamp);
    reader.request(Mono(1));
    wait_until_busy(&reader);
    reader.request_everything(Mono(2));
    reader.request(Mono(3));
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 3.0);
    assert_eq!(depths.iter().take(2).collect::<Vec<_>>(), [Depth::Due, Depth::Everything]);
}

#[test]
fn a_hung_call_is_left_behind() {
    let (go, gate) = mpsc::channel::<()>();
    let mut reader = reader(move |_, _, _| gate.recv().unwrap_or(()));
    reader.request(Mono(1));
    wait_until_busy(&reader);
    assert!(reader.take(Duration::ZERO).is_none());
    assert!(!reader.stop(Duration::from_millis(1)), "it cannot have ended");
    drop(go);
}

#[test]
fn a_panic_ends_the_reader_and_is_reported() {
    let mut reader = reader(|at, _, frame| {
        stamp(at, frame);
        assert!(at.0 < 2, "at the second");
    });
    reader.request(Mono(1));
    assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 1.0);
    for at in 2..4 {
        reader.request(Mono(at));
        assert!(reader.take(PATIENCE).is_none());
    }
    let news = reader.news();
    assert_eq!(news.len(), 1);
    assert!(news[0].device.is_none() && news[0].reason.to_string().contains("at the second"), "{news:?}");
    assert!(reader.stop(PATIENCE));
}

#[test]
fn what_fails_at_the_opening_is_told() {
    let error = || NvmlError::NoDriver { library: "x".to_owned() };
    let mut failing = GpuReader::launch(move || Err(error()), GpuSettings::new(vec![], PATIENCE)).unwrap();
    assert_eq!(failing.ready(PATIENCE), Some(Err(GpuReaderError::Driver(error()))));
    failing.request(Mono(1));
    assert!(failing.take(PATIENCE).is_none());
    assert!(failing.stop(PATIENCE));

    let mut panicking =
        GpuReader::launch(|| panic!("at the opening"), GpuSettings::new(vec![], PATIENCE)).unwrap();
    let answer = panicking.ready(PATIENCE).unwrap();
    assert_eq!(answer, Err(GpuReaderError::Failed("at the opening".to_owned())));
}

#[test]
fn buffers_go_round() {
    let mut reader = reader(|at, _, frame| stamp(at, frame));
    let mut places = std::collections::HashSet::new();
    for at in 0..50 {
        reader.request(Mono(at));
        places.insert(reader.take(PATIENCE).unwrap().devices.as_ptr());
    }
    assert!(places.len() <= 3, "{} frames were allocated", places.len());
}
