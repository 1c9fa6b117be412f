//! Tests: the callbacks in the real Keras, Transformers and Lightning, through the real gpurun. `tests/frameworks` installs
//! what can be had of them and runs these.

use std::collections::BTreeMap;

use super::rows::by_step;
use super::*;

/// A Python that has the framework.
fn frameworks_python() -> String {
    std::env::var("GPURUN_FRAMEWORKS_PYTHON").expect("GPURUN_FRAMEWORKS_PYTHON names a Python")
}

/// What the framework tells the callback, and when: one test of `python/tests/test_frameworks.py`.
fn hooks(framework: &str) {
    let mut command = Command::new(frameworks_python());
    command.args(["-m", "unittest", &format!("tests.test_frameworks.Real.test_{framework}")]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("GPURUN_SOCKET");
    let output = succeed(command.current_dir(repository().join("python")));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("Ran 1 test") && said.trim_end().ends_with("OK"), "it may not be skipped: {said}");
}

/// Runs a training script on the CPU, with a step row for each step.
fn train(dir: &Path, job: &str) -> Csv {
    let job = script(dir, "job.py", job);
    let options = ["--every-n-steps", "1", "--processes", "none", "--log", "x.csv"];
    let mut command = gpurun(dir, None, &options, &[&frameworks_python(), &job]);
    succeed(command.env("CUDA_VISIBLE_DEVICES", "").env("KERAS_BACKEND", "jax"));
    Csv::read(&dir.join("x.csv"))
}

/// Tags with the number of the opening, in the order in which they ended, and how long each was open.
fn tags(csv: &Csv) -> Vec<(String, String, f64)> {
    let rows = [("kind", "tag"), ("scope", "job"), ("metric", "processes")];
    let (tags, occurrences) = (csv.select(&rows, "tag"), csv.select(&rows, "occurrence"));
    let all = tags.into_iter().zip(occurrences).zip(csv.numbers(&rows, "window_s"));
    all.map(|((tag, occurrence), seconds)| (tag, occurrence, seconds)).collect()
}

/// The epoch of each step, by the row of the step.
fn epochs(csv: &Csv) -> Vec<(String, String)> {
    let rows = [("kind", "step"), ("scope", "job"), ("metric", "processes")];
    csv.select(&rows, "step").into_iter().zip(csv.select(&rows, "epoch")).collect()
}

#[test]
#[ignore = "needs keras and jax: run tests/frameworks"]
fn keras() {
    hooks("keras");
    let dir = tempfile::tempdir().unwrap();
    let job = r#"
import numpy
import keras
from gpurun.keras import GpurunCallback

class Slow(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        import time
        time.sleep(0.05)

x = numpy.random.rand(128, 4).astype("float32")
y = numpy.random.rand(128, 1).astype("float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
callbacks = [GpurunCallback(), Slow()]
data = {"batch_size": 4, "callbacks": callbacks, "verbose": 0}
history = model.fit(x, y, epochs=2, validation_data=(x, y), **data)
model.evaluate(x, y, **data)
model.predict(x, **data)
import json
json.dump(history.history, open("history.json", "w"))
"#;
    let csv = train(dir.path(), job);
    // Two epochs of 32 batches, four of which run as one.
    let steps = [("kind", "step"), ("scope", "batch_time"), ("metric", "intra_step")];
    assert_eq!(csv.numbers(&steps, "samples"), [4.0; 16]);
    let expected = (1..=16).map(|n| ((4 * n).to_string(), ((n - 1) / 8).to_string()));
    assert_eq!(epochs(&csv), expected.collect::<Vec<_>>());
    // What Keras says at the end of an epoch is of its last step.
    let history = json(dir.path().join("history.json"));
    for name in ["loss", "val_loss"] {
        let values = [32, 64].into_iter().zip(history[name].as_array().unwrap());
        for (step, value) in values {
            let got = by_step(&csv, name)[&step][0];
            assert!(
                (got - value.as_f64().unwrap()).abs() < 1e-6,
                "{name} of step {step}: {got}, not {value}"
            );
        }
    }
    let tags: Vec<_> = tags(&csv).into_iter().map(|(tag, occurrence, _)| (tag, occurrence)).collect();
    let expected = [
        ("run/train/validate", "1"),
        ("run/train/validate", "2"),
        ("run/train", "1"),
        ("run/test", "1"),
        ("run/predict", "1"),
    ];
    assert_eq!(tags, expected.map(|(tag, occurrence)| (tag.to_owned(), occurrence.to_owned())));
}

#[test]
#[ignore = "needs torch, transformers and accelerate: run tests/frameworks"]
fn transformers() {
    hooks("transformers");
    let dir = tempfile::tempdir().unwrap();
    // The loss of step n is n, and what is logged for step n is the mean of two.
    let job = r#"
import time
import torch
from transformers import Trainer, TrainingArguments
from gpurun.huggingface import GpurunCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.steps = 0

    def forward(self, x, labels):
        if self.training:
            self.steps += 1
        else:
            time.sleep(0.5)
        out = self.layer(x)
        return {"loss": 0 * out.sum() + float(self.steps), "logits": out}

data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, per_device_eval_batch_size=32, num_train_epochs=2, logging_steps=2,
    eval_strategy="epoch", report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[GpurunCallback()]).train()
"#;
    let csv = train(dir.path(), job);
    let losses: BTreeMap<i64, Vec<f64>> =
        (1..=16).map(|n| (2 * n, vec![2.0 * f64::from(n as i32) - 0.5])).collect();
    assert_eq!(by_step(&csv, "loss"), losses);
    let expected = (1..=32).map(|n| (n.to_string(), ((n - 1) / 16).to_string()));
    assert_eq!(epochs(&csv), expected.collect::<Vec<_>>());
    let tags = tags(&csv);
    let names: Vec<_> = tags.iter().map(|(tag, occurrence, _)| (tag.as_str(), occurrence.as_str())).collect();
    assert_eq!(names, [("run/train/validate", "1"), ("run/train/validate", "2"), ("run/train", "1")]);
    // Two batches of half a second: it is open before the first of them.
    assert!(tags[..2].iter().all(|(_, _, seconds)| *seconds >= 1.0), "{tags:?}");
    // And none of it is in a step.
    let longest = csv.numbers(&[("kind", "step"), ("metric", "step")], "max").into_iter().fold(0.0, f64::max);
    assert!(longest > 0.0 && longest < 1000.0, "{longest} ms");
}

/// The real Lightning `Trainer` with the drop-in, on the CPU.
#[test]
#[ignore = "needs torch and lightning: run tests/frameworks"]
fn lightning() {
    hooks("lightning");
    let python = frameworks_python();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let example = repository().join("examples/lightning_mnist_like.py");
    let job =
        [python.as_str(), example.to_str().unwrap(), "--accelerator", "cpu", "--every", "5", "--out", "logs"];
    let output = succeed(&mut gpurun(dir, None, &["--every-n-steps", "16", "--log", "x.csv"], &job));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("uses no GPU").count(), 1, "{said}");

    // 3 epochs of 32 batches; the trainer's own log has a time for every fifth step.
    let logged = Csv::read(&dir.join("logs/lightning_logs/version_0/metrics.csv"));
    let times = |column: &str| logged.select(&[], column).iter().filter(|value| !value.is_empty()).count();
    assert_eq!(times("batch_time/intra_step (ms)"), 96 / 5);
    // Of the logged batches, the 65th is the first of an epoch.
    assert_eq!(times("batch_time/inter_step (ms)"), 96 / 5 - 1);

    let csv = Csv::read(&dir.join("x.csv"));
    let steps = csv.select(&[("kind", "step"), ("metric", "intra_step")], "step");
    assert_eq!(steps, ["16", "32", "48", "64", "80", "96"]);
    let inter = csv.numbers(&[("kind", "step"), ("metric", "inter_step")], "samples");
    // None across epochs: steps 1, 33 and 65 have no time before them.
    assert_eq!(inter, [15.0, 16.0, 15.0, 16.0, 15.0, 16.0]);
    let expected = (1..=6).map(|n| ((16 * n).to_string(), ((n - 1) / 2).to_string()));
    assert_eq!(epochs(&csv), expected.collect::<Vec<_>>());
    // What the trainer logs for a batch stands in the row of its step, here and in the trainer's own log.
    let own: Vec<f64> = (logged.select(&[], "train_loss").iter().filter(|value| !value.is_empty()))
        .map(|value| value.parse().unwrap())
        .collect();
    let ours = [("kind", "step"), ("scope", "user"), ("metric", "train_loss")];
    let samples = csv.numbers(&ours, "samples");
    assert_eq!(samples.iter().sum::<f64>(), own.len() as f64);
    let of_rows: f64 = csv.numbers(&ours, "mean").iter().zip(&samples).map(|(mean, n)| mean * n).sum();
    assert!((of_rows - own.iter().sum::<f64>()).abs() < 1e-3, "{of_rows}");
    let tags: BTreeSet<String> = csv.select(&[("kind", "tag")], "tag").into_iter().collect();
    for tag in ["run/train", "run/train/validate", "run/sanity_check"] {
        assert!(tags.contains(tag), "{tag} is not in {tags:?}");
    }
}
