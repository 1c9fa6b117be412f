//! `gpurun report`: from real runs and made-up logs to text and pages.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::support;
use crate::support::text;

const HEADER: &str = "time,start,window_s,run,host,rank,kind,tag,occurrence,epoch,step,scope,gpu,cuda,uuid,pid,process,metric,unit,mean,min,max,last,samples,missing\n";

fn report(dir: &Path, args: &[&str]) -> Output {
    Command::new(support::gpurun()).arg("report").args(args).current_dir(dir).output().unwrap()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A CSV log of ten windows of 10 s on one GPU; the windows in `unknown` have no value.
fn log(run: &str, rank: Option<i32>, tag: &str, unknown: &[u32]) -> String {
    let rank = rank.map(|r| r.to_string()).unwrap_or_default();
    let run = quoted(run);
    let mut csv = HEADER.to_owned();
    for window in 1..=10u32 {
        let at = |n: u32| format!("2026-11-30T05:{:02}:{:02}.000000Z", n / 6, n % 6 * 10);
        let (time, start) = (at(window), at(window - 1));
        let stats = if unknown.contains(&window) { ",,,,0,10" } else { "80,70,90,80,10,0" };
        let _ = writeln!(
            csv,
            "{time},{start},10,{run},node,{rank},window,run,1,,,gpu,0,0,GPU-1,,,gpu_utilization,%,{stats}"
        );
        let _ = writeln!(
            csv,
            "{time},{start},10,{run},node,{rank},window,run,1,,,job,,,,,,cpu_percent,%,150,100,200,150,10,0"
        );
    }
    let tag = quoted(&format!("run/{tag}"));
    let _ = writeln!(
        csv,
        "2026-11-30T05:01:00.000000Z,2026-11-30T05:00:30.000000Z,30,{run},node,{rank},tag,{tag},1,,,gpu,0,0,GPU-1,,,gpu_utilization,%,60,0,90,80,30,0"
    );
    csv
}

/// The names of all elements, each of which must be closed in its place.
fn elements(page: &str) -> Vec<String> {
    let (mut names, mut open) = (Vec::new(), Vec::<String>::new());
    let body = page.strip_prefix("<!doctype html>").expect("a page begins with its doctype");
    for piece in body.split('<').skip(1) {
        let (inside, _) = piece.split_once('>').unwrap_or_else(|| panic!("unclosed: <{piece}"));
        let name: String =
            inside.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if inside.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "</{name}> closes something else");
        } else {
            if !inside.ends_with('/') && name != "meta" {
                open.push(name.clone());
            }
            names.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    names
}

#[test]
fn a_real_run_reads_back_as_text_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = fake_nvml::scenario_file("four-gpus-two-full").unwrap();
    let driver = fake_nvml::install_file(dir.path(), &scenario).unwrap();
    let mut run = Command::new(support::gpurun());
    run.args(["-n", "1", "--interval", "50ms", "--window", "100ms", "--log", "m.parquet", "--"])
        .args(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3"])
        .current_dir(dir.path())
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("GPURUN_LEASE_DIR", dir.path().join("leases"));
    driver.apply(&mut run);
    let done = run.output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));

    let output = report(dir.path(), &["m.parquet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for part in ["m.parquet", "exit status 3", "sh -c 'i=0; while", "GPU 3", "of 80.0 GiB", "CPU of the job"]
    {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }

    let output = report(dir.path(), &["m.parquet", "-o", "report.html"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    let names = elements(&page);
    assert!(names.iter().filter(|n| *n == "svg").count() >= 5, "{names:?}");
    assert!(page.contains("exit status 3") && page.contains("while [ $i -lt 20000 ]"));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".report")), "{left:?}");
}

#[test]
fn a_page_loads_nothing_and_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let evil = "</title></svg><script>alert(1)</script>\" onload='x' &amp; \u{1b}[31m\u{202e}";
    std::fs::write(dir.path().join("x.csv"), log(evil, None, evil, &[])).unwrap();
    let output = report(dir.path(), &["x.csv", "-o", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    let names = elements(&page);
    for banned in ["script", "link", "img", "iframe", "object", "use", "image", "foreignObject"] {
        assert!(!names.iter().any(|n| n == banned), "a {banned} element");
    }
    for banned in ["http://", "https://", "url(", "@import", "src=", "href=", "\u{1b}", "\u{202e}"] {
        assert!(!page.contains(banned), "{banned:?} in the page");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39; &amp;amp;"));
    let shown = text(&report(dir.path(), &["x.csv"]).stdout);
    assert!(!shown.contains('\u{1b}') && shown.contains("<script>"), "{shown}");
}

#[test]
fn unknown_windows_are_a_gap_in_the_line() {
    let lines = |unknown: &[u32]| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x.csv"), log("r", None, "train", unknown)).unwrap();
        let page = text(&report(dir.path(), &["x.csv", "-o", "-"]).stdout);
        let strip = page.split("<g class=\"g0\">").nth(1).unwrap().to_owned();
        let path =
            strip.split("<path class=\"line\" d=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        path.matches('M').count()
    };
    assert_eq!(lines(&[]), 1);
    assert_eq!(lines(&[4, 5]), 2);
    assert_eq!(lines(&[2, 5, 9]), 4);
}

#[test]
fn ranks_stand_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..4 {
        let name = format!("rank{rank}.csv");
        std::fs::write(dir.path().join(name), log("r", Some(rank), "train", &[])).unwrap();
    }
    // A directory means the logs in it.
    let shown = text(&report(dir.path(), &["."]).stdout);
    // As many columns as fit, then another block.
    let header: Vec<&str> =
        shown.lines().next().unwrap().split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
    assert_eq!(header, ["rank 0", "rank 1", "rank 2"], "{shown}");
    assert!(shown.lines().any(|line| line.trim() == "rank 3"), "{shown}");
    assert_eq!(shown.matches("GPU 0").count(), 4, "{shown}");
    let page = text(&report(dir.path(), &[".", "-o", "-"]).stdout);
    elements(&page);
    assert_eq!(page.matches("<figcaption>rank 2</figcaption>").count(), 3, "tags, utilisation, job");
}

#[test]
fn a_page_replaces_a_page_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("x.csv"), log("r", None, "train", &[])).unwrap();
    std::fs::write(path("notes.html"), "dear diary").unwrap();
    std::fs::hard_link(path("x.csv"), path("same.html")).unwrap();
    std::fs::create_dir(path("folder.html")).unwrap();
    for (output, words) in [
        ("x.csv", "use a name that ends in .html"),
        (".", "use a name that ends in .html"),
        ("same.html", "is one of the logs"),
        ("notes.html", "is no HTML page"),
        ("folder.html", "is no HTML page"),
        ("missing/report.html", "cannot write missing/report.html"),
    ] {
        let refused = report(dir.path(), &["x.csv", "-o", output]);
        assert!(!refused.status.success(), "{output}");
        assert!(text(&refused.stderr).contains(words), "{output}: {}", text(&refused.stderr));
    }
    assert_eq!(std::fs::read_to_string(path("notes.html")).unwrap(), "dear diary");
    assert_eq!(std::fs::read_to_string(path("x.csv")).unwrap(), log("r", None, "train", &[]));
    for _ in 0..2 {
        assert!(report(dir.path(), &["x.csv", "-o", "report.html"]).status.success());
    }
    let entries = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 5, "nothing is left aside");
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty.csv"), HEADER).unwrap();
    std::fs::write(dir.path().join("odd.csv"), "a,b\n1,2\n").unwrap();
    let mut torn = log("r", None, "train", &[]);
    torn.push_str("2026-11-30T05:0");
    std::fs::write(dir.path().join("torn.csv"), torn).unwrap();
    let empty = report(dir.path(), &["empty.csv"]);
    assert!(empty.status.success());
    assert_eq!(text(&empty.stdout), "no rows\n");
    elements(&text(&report(dir.path(), &["empty.csv", "-o", "-"]).stdout));
    for name in ["odd.csv", "missing.csv"] {
        let output = report(dir.path(), &[name]);
        assert!(!output.status.success() && output.stdout.is_empty());
        let line = text(&output.stderr);
        assert!(line.contains(name) && line.lines().count() == 1, "{line}");
    }
    let shown = text(&report(dir.path(), &["torn.csv"]).stdout);
    assert!(shown.contains("torn.csv: an incomplete last line of 15 bytes was left out"), "{shown}");
}
