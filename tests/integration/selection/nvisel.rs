//! `gpurun select` against the real nvisel, on made-up hosts.

use super::*;

/// One scenario with one argument list.
#[derive(Clone, Debug)]
struct Case {
    total: i32,
    /// Free memory of each GPU in twentieths and a rest; distinct, as two in one bucket are a deliberate difference.
    free: Vec<(i32, i32)>,
    utilization: Vec<(i32, i32)>,
    /// A process of this very user, of so many twentieths, on GPU 0.
    own: i32,
    words: Vec<String>,
}

impl Case {
    fn scenario(&self) -> Scenario {
        let mut devices = Vec::new();
        for (index, ((bucket, rest), (gpu, memory))) in self.free.iter().zip(&self.utilization).enumerate() {
            let twentieth = self.total / 20;
            let free = bucket * twentieth + rest % twentieth;
            let own = if index == 0 { self.own * twentieth } else { 0 };
            let process =
                Process { pid: Some(std::process::id()), memory: Some(own.into()), ..Process::default() };
            devices.push(Gpu {
                memory_total: Some(self.total.into()),
                memory_used: Some((self.total - free).into()),
                gpu_utilization: Some((*gpu).into()),
                memory_utilization: Some((*memory).into()),
                process: if own > 0 { vec![process] } else { Vec::new() },
                ..Gpu::default()
            });
        }
        Scenario { gpu: devices, ..Scenario::default() }
    }
}

prop_compose! {
    fn words(count: usize, own: bool)(
        shape in 0..6, a in 0..=count, b in 0..=count,
        free in proptest::option::of((0_u32..25_000, prop_oneof![Just("MiB"), Just("M"), Just("mb"), Just(" MiB")])),
        total in proptest::option::weighted(0.2, prop_oneof![Just("10G"), Just("16GiB"), Just("40000MB")]),
        gpu in proptest::option::weighted(0.3, 0_u32..101),
        memory in proptest::option::weighted(0.3, 0_u32..101),
        tolerance in 0_u32..60,
        form in prop_oneof![
            6 => Just(vec![]), 1 => Just(vec!["-O", "uuid"]), 1 => Just(vec!["-s", " "]), 1 => Just(vec!["--newline"]),
            1 => Just(vec!["-0"]), 1 => Just(vec!["-O", "index", "--sep", "::"]),
        ],
        unsorted in proptest::bool::weighted(0.15),
        account in proptest::bool::weighted(0.5),
    ) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut push = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        let (low, high) = (a.min(b), a.max(b));
        match shape {
            0 => push(&["-n", &a.to_string()]),
            1 => push(&["-c", &a.to_string()]),
            2 => push(&["-C", &a.to_string()]),
            3 => push(&["--min-count", &low.to_string(), "--max-count", &high.to_string()]),
            // Loosened devices beyond the minimum are a deliberate difference: only where the count is exact.
            4 => push(&["--count", &a.to_string(), "--tol", &tolerance.to_string()]),
            _ => {}
        }
        if let Some((size, unit)) = free { push(&["-f", &format!("{size}{unit}")]); }
        if let Some(total) = total { push(&["-t", total]); }
        if let Some(gpu) = gpu { push(&["-G", &gpu.to_string()]); }
        if let Some(memory) = memory { push(&["-M", &memory.to_string()]); }
        push(&form);
        if unsorted { push(&["-S"]); }
        if own && account { push(&["--account-as-free"]); }
        words
    }
}

fn case() -> impl Strategy<Value = Case> {
    (
        1_usize..9,
        prop_oneof![Just(16_000), Just(24_000), Just(40_960), Just(81_920)],
        proptest::bool::weighted(0.2),
    )
        .prop_flat_map(|(count, total, own)| {
            // With a process of ours GPU 0 has two places in the order, and both must be nobody else's.
            let places = Just((0..19).collect::<Vec<i32>>()).prop_shuffle();
            (
                places,
                proptest::collection::vec(1_i32..700, count),
                proptest::collection::vec((0_i32..101, 0_i32..101), count),
                words(count, own),
            )
                .prop_map(move |(places, rest, utilization, words)| {
                    let mut free: Vec<(i32, i32)> = places.into_iter().zip(rest).collect();
                    let extra = free.len();
                    let mut own_twentieths = 0;
                    if own && extra < 9 {
                        let low = free.iter().map(|(bucket, _)| *bucket).min().unwrap_or(0);
                        if let Some(first) = free.first_mut() {
                            // From below all others to above all others.
                            first.0 = low;
                            own_twentieths = 19 - low;
                        }
                        let mut used: Vec<i32> = free.iter().skip(1).map(|(bucket, _)| *bucket).collect();
                        used.sort_unstable();
                        used.dedup();
                        if used.contains(&low) || used.len() + 1 != extra {
                            own_twentieths = 0;
                        }
                    }
                    Case { total, free, utilization, own: own_twentieths, words }
                })
        })
        .prop_filter("distinct buckets", |case| {
            let mut buckets: Vec<i32> = case.free.iter().map(|(bucket, _)| *bucket).collect();
            buckets.sort_unstable();
            buckets.windows(2).all(|pair| pair[0] != pair[1])
        })
}

/// Runs nvisel's own `main` for each case, in a fork of one interpreter that has it loaded.
const NVISEL: &str = r#"
import json, os, sys
import nvitop.select
assert nvitop.__version__ == '1.7.2', nvitop.__version__
for line in sys.stdin:
    case = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ['GPURUN_FAKE_NVML'] = case['scenario']
        sys.argv = ['nvisel'] + case['words']
        code = 99
        try:
            code = nvitop.select.main()
        except SystemExit as exit:
            code = exit.code
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, 'rb') as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    print(json.dumps({'code': os.waitstatus_to_exitcode(status), 'stdout': text.decode()}), flush=True)
"#;

#[test]
fn select_answers_as_nvisel_does() {
    let mut runner = TestRunner::deterministic();
    let strategy = case();
    let mut cases: Vec<Case> = (0..360).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    // The inherited set: each costs nvisel seconds of child interpreters, so a few.
    for value in ["0", "1,0", " 1 , 0 ", "0,-1,1", "0,0", "2abc,1"] {
        cases.push(Case {
            total: 24_000,
            free: vec![(3, 1), (9, 1), (6, 1)],
            utilization: vec![(0, 0); 3],
            own: 0,
            words: vec![format!("-i={value}")],
        });
    }
    let host = host_of(&[]);
    let script = host.path().join("nvisel.py");
    std::fs::write(&script, NVISEL).unwrap();
    let mut input = String::new();
    for (index, case) in cases.iter().enumerate() {
        let path = host.path().join(format!("case-{index}.toml"));
        std::fs::write(&path, case.scenario().to_toml()).unwrap();
        input.push_str(&serde_json::json!({ "scenario": path, "words": case.words }).to_string());
        input.push('\n');
    }
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let mut command = Command::new(support::python());
    host.driver.apply(&mut command);
    let mut child = command
        .arg(&script)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LOGNAME", user.trim_end())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    let answers: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), cases.len(), "nvisel answered every case");

    let (mut short, mut printed) = (0, 0);
    let accounted =
        cases.iter().filter(|case| case.words.iter().any(|word| word == "--account-as-free")).count();
    for (index, (case, answer)) in cases.iter().zip(&answers).enumerate() {
        let ours = host
            .gpurun()
            .env("GPURUN_FAKE_NVML", host.path().join(format!("case-{index}.toml")))
            .arg("select")
            .args(&case.words)
            .output()
            .unwrap();
        let said = format!("{case:?}\nnvisel: {answer}\nselect: {ours:?}");
        assert_eq!(ours.status.code().map(i64::from), answer["code"].as_i64(), "{said}");
        if ours.status.code() == Some(4) {
            short += 1;
            assert_eq!(ours.stdout, b"", "{said}");
        } else {
            printed += 1;
            assert_eq!(
                Some(String::from_utf8_lossy(&ours.stdout).as_ref()),
                answer["stdout"].as_str(),
                "{said}"
            );
        }
    }
    // Both kinds of answer were really compared.
    assert!(short > 20 && printed > 150 && accounted > 5, "{short} too few, {printed} printed, {accounted}");
}
