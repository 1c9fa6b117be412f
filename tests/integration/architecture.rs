//! The source is tested too: the import table of the rooms, headers, and where printing, unsafe
//! code and process exits may stand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which rooms a room may import from. `main.rs` and `lib.rs` are outside the table.
const IMPORTS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("sys", &["model"]),
    ("link", &["model"]),
    ("cli", &["model"]),
    ("collectors", &["model", "sys"]),
    ("control", &["model", "sys"]),
    ("minder", &["model", "sys", "link"]),
    ("report", &["model", "sys"]),
    ("sampling", &["model", "sys", "collectors"]),
    ("selection", &["model", "sys"]),
    ("summary", &["model", "sys"]),
    ("windowing", &["model"]),
    ("writers", &["model", "sys"]),
    (
        "sidecar",
        &[
            "model",
            "sys",
            "link",
            "cli",
            "collectors",
            "control",
            "sampling",
            "selection",
            "summary",
            "windowing",
            "writers",
        ],
    ),
    (
        "commands",
        &[
            "model",
            "sys",
            "link",
            "cli",
            "collectors",
            "control",
            "minder",
            "report",
            "selection",
            "sidecar",
            "summary",
            "writers",
        ],
    ),
];

/// Where `unsafe` may stand: the machine's edges.
const UNSAFE: &[&str] =
    &["minder/", "sys/", "collectors/nvml", "collectors/cuda.rs", "control/os.rs", "main.rs"];

/// Where the process may be ended on the spot.
const ENDS: &[&str] = &["sys/process.rs", "minder/spawn.rs"];

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources() -> BTreeMap<PathBuf, String> {
    fn walk(dir: &Path, into: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                into.insert(path, text);
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(&source_root(), &mut all);
    assert!(all.len() > 20, "the walk found the sources");
    all
}

/// The files that ship: all but the modules of tests.
fn shipped() -> BTreeMap<PathBuf, String> {
    let of_tests = |path: &Path| {
        let inside = path.strip_prefix(source_root()).unwrap().with_extension("");
        inside.components().any(|part| part.as_os_str() == "tests")
    };
    sources().into_iter().filter(|(path, _)| !of_tests(path)).collect()
}

/// The room a file belongs to: its first path component under `src`.
fn room_of(path: &Path) -> String {
    let inside = path.strip_prefix(source_root()).unwrap();
    inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The part of a file that ships: everything but the items under `#[cfg(test)]`.
fn production(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        // Further attributes, then the item: one line, or a block that ends at the same indent.
        let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")).unwrap_or_default();
        if !item.trim_end().ends_with([';', '}']) {
            let end = format!("{indent}}}");
            lines.by_ref().find(|line| *line == end);
        }
    }
    kept
}

/// Code without comments and doc lines.
fn code(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Rooms named by `crate::room` paths, nested imports (`use crate::{a, b::c}`) included.
fn imported(text: &str) -> Vec<String> {
    let text = code(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        // `$crate::` of macros means the same crate.
        let rest = &text[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut word = String::new();
            let mut first = true;
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => first = true,
                    c if depth == 0 && first && (c.is_alphanumeric() || c == '_') => word.push(c),
                    _ if depth == 0 && first && !word.is_empty() => {
                        found.push(std::mem::take(&mut word));
                        first = false;
                    }
                    _ => {}
                }
                if c == ',' && depth == 0 && !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
            }
            if !word.is_empty() {
                found.push(word);
            }
        } else {
            found.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    found
}

#[test]
fn what_ships_is_everything_but_the_tests() {
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n    #[cfg(test)]\n    fn only() {\n        x\n    }\nc\n\
                #[cfg(test)]\nmod tests {\n    y\n}\nd\n";
    assert_eq!(production(text), "a\nb\nc\nd\n");
}

#[test]
fn the_import_reader_sees_every_form() {
    let text = "use crate::model::id; use crate::{cli, launch::{a, b}, writers::x};\n// crate::report\nfn f() { crate::control::g() }";
    assert_eq!(imported(text), ["model", "cli", "launch", "writers", "control"]);
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let rooms: Vec<&str> = IMPORTS.iter().map(|(room, _)| *room).collect();
    let mut wrong = Vec::new();
    for (path, text) in shipped() {
        let room = room_of(&path);
        if room == "main" || room == "lib" {
            continue;
        }
        let Some((_, allowed)) = IMPORTS.iter().find(|(r, _)| *r == room) else {
            panic!("{} belongs to no room of the table", path.display());
        };
        for name in imported(&production(&text)) {
            if rooms.contains(&name.as_str()) && name != room && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {room} imports {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The public API is what `lib.rs` names one by one.
#[test]
fn no_room_is_public() {
    let text = std::fs::read_to_string(source_root().join("lib.rs")).unwrap();
    let public: Vec<_> = text.lines().filter(|line| line.starts_with("pub mod ")).collect();
    assert_eq!(public, ["pub mod program {", "pub mod internals {"]);
    assert_eq!(text.matches("#[doc(hidden)]\npub mod ").count(), public.len());
}

#[test]
fn every_file_says_what_it_owns() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not open with what it owns", path.display());
    }
}

#[test]
fn there_is_no_room_for_everything() {
    for path in sources().keys() {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["utils", "util", "helpers", "errors", "common", "misc"].contains(&stem),
            "{}",
            path.display()
        );
    }
}

#[test]
fn unsafe_code_stands_at_the_edges_only() {
    for (path, text) in shipped() {
        let inside = path.strip_prefix(source_root()).unwrap();
        let text = code(&production(&text));
        if text.contains("unsafe ") {
            let inside = inside.to_str().unwrap();
            assert!(UNSAFE.iter().any(|edge| inside.starts_with(edge)), "{} has unsafe code", path.display());
        }
    }
}

#[test]
fn nothing_fake_is_in_the_sources() {
    for (path, text) in shipped() {
        let text = production(&text).to_lowercase();
        for word in ["fake", "mock", "stub"] {
            assert!(!text.contains(word), "{} speaks of a {word}", path.display());
        }
    }
}

#[test]
fn the_process_ends_in_main_only() {
    let mut ends = Vec::new();
    for (path, text) in shipped() {
        let inside = path.strip_prefix(source_root()).unwrap().to_str().unwrap().to_owned();
        if inside == "main.rs" {
            assert!(text.lines().count() < 80, "main.rs stays thin");
            continue;
        }
        let text = code(&production(&text));
        if ["process::exit(", "libc::_exit(", "process::abort("].iter().any(|end| text.contains(end)) {
            ends.push(inside);
        }
    }
    ends.sort();
    let mut allowed: Vec<_> = ENDS.to_vec();
    allowed.sort_unstable();
    assert_eq!(ends, allowed);
}
