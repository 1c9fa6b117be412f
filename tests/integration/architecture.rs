//! The source is tested too: the import table of the rooms, headers, and where printing, unsafe
//! code and process exits may stand.

use std::collections::{BTreeMap, BTreeSet};
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

/// A file has at most this many lines.
const FILE_LINES: usize = 600;

/// A function of `src` has at most this many lines.
const FUNCTION_LINES: usize = 70;

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every path of the code as its names, nested imports (`use crate::{a, b::c}`) included.
fn paths(text: &str) -> Vec<Vec<String>> {
    let text = code(text);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(is_word) {
        rest = read_path(&rest[at..], &[], &mut found);
    }
    found
}

/// Reads the path that `text` begins with, and those in its braces. Gives what follows.
fn read_path<'a>(text: &'a str, prefix: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut names = prefix.to_vec();
    let mut rest = text;
    loop {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        names.push(rest[..end].to_owned());
        rest = &rest[end..];
        let Some(next) = rest.strip_prefix("::") else { break };
        if let Some(mut group) = next.strip_prefix('{') {
            while let Some(at) = group.find(|c| is_word(c) || c == '}') {
                group = match group[at..].strip_prefix('}') {
                    Some(after) => return after,
                    None => read_path(&group[at..], &names, found),
                };
            }
            return "";
        }
        rest = next;
        if !rest.starts_with(is_word) {
            break;
        }
    }
    found.push(names);
    rest
}

/// Rooms named by `crate::room` paths.
fn imported(text: &str) -> Vec<String> {
    let of_crate =
        |mut path: Vec<String>| (path.len() > 1 && path[0] == "crate").then(|| path.swap_remove(1));
    paths(text).into_iter().filter_map(of_crate).collect()
}

/// The module of a file: `src/a/b.rs` is `[a, b]`.
fn module_of(path: &Path) -> Vec<String> {
    let inside = path.strip_prefix(source_root()).unwrap().with_extension("");
    inside.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect()
}

/// The statements that import for others, and the code without them.
fn split_reexports(text: &str) -> (String, String) {
    let is_reexport = |statement: &&str| {
        let last = statement.rsplit(['}', ']']).next().unwrap_or_default();
        let whole = statement.trim_start();
        [whole, last.trim_start()].iter().any(|text| text.starts_with("pub") && text.contains(" use "))
    };
    let text = code(text);
    let (reexports, rest): (Vec<&str>, Vec<&str>) = text.split_inclusive(';').partition(is_reexport);
    (reexports.concat(), rest.concat())
}

/// Which parts of a room import which others. A part is a file with the folder of its name; the room's own file is the
/// part without a name. What that file only passes on is imported from where it comes from.
fn parts_of(room: &str) -> BTreeMap<String, BTreeSet<String>> {
    let files: Vec<(Vec<String>, String)> = shipped()
        .into_iter()
        .map(|(path, text)| (module_of(&path), production(&text)))
        .filter(|(module, _)| module[0] == room)
        .collect();
    let is_part = |name: &String| files.iter().any(|(module, _)| module.get(1) == Some(name));
    let mut passed_on = BTreeMap::new();
    for (_, text) in files.iter().filter(|(module, _)| module.len() == 1) {
        for path in paths(&split_reexports(text).0).into_iter().filter(|path| is_part(&path[0])) {
            passed_on.insert(path[path.len() - 1].clone(), path[0].clone());
        }
    }
    let mut imports = BTreeMap::<String, BTreeSet<String>>::new();
    for (module, text) in &files {
        let part = module.get(1).cloned().unwrap_or_default();
        let text = if part.is_empty() { split_reexports(text).1 } else { text.clone() };
        for path in paths(&text) {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let whole = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                "super" => [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat(),
                _ if part.is_empty() && path.len() > 1 => [&module[..], &path[..]].concat(),
                _ => continue,
            };
            if whole.len() < 2 || whole[0] != room {
                continue;
            }
            let name = &whole[1];
            let target = if is_part(name) { Some(name) } else { passed_on.get(name) };
            let target = target.cloned().unwrap_or_default();
            if target != part {
                imports.entry(part.clone()).or_default().insert(target);
            }
        }
    }
    imports
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
    assert_eq!(imported(text), ["model", "cli", "launch", "launch", "writers", "control"]);
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

/// Parts of a room that import one another in a circle can only be read together.
#[test]
fn parts_of_a_room_import_in_one_direction() {
    // Directly, over the room's own file that passes it on, and never of that file alone.
    assert!(parts_of("control")["server"].contains("event_loop"));
    assert!(parts_of("writers")["export"].contains("read"));
    assert!(!parts_of("control").contains_key(""));
    let mut circles = Vec::new();
    for (room, _) in IMPORTS {
        let mut imports = parts_of(room);
        // A part that imports none of the others is in no circle.
        while let Some(free) = imports.iter().find_map(|(part, from)| {
            from.iter().all(|other| !imports.contains_key(other)).then(|| part.clone())
        }) {
            imports.remove(&free);
        }
        if !imports.is_empty() {
            circles.push(format!("{room}: {imports:?}"));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// Every `.rs` file under a directory of the repository.
fn repository_files(dir: &str) -> Vec<(PathBuf, String)> {
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}

#[test]
fn no_file_is_too_long() {
    let files: Vec<_> =
        ["src", "tests", "benches", "examples"].into_iter().flat_map(repository_files).collect();
    assert!(files.len() > 200);
    let long: Vec<_> = files.iter().filter(|(_, text)| text.lines().count() > FILE_LINES).collect();
    assert!(long.is_empty(), "{:?}", long.iter().map(|(path, _)| path).collect::<Vec<_>>());
}

/// Name and length of every function. In formatted code a function ends at the first `}` below its `fn`.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let (indent, words) = line.split_at(line.len() - line.trim_start().len());
        let Some((before, name)) = words.split_once("fn ") else { continue };
        let is_function = before.split_whitespace().all(|word| {
            word.starts_with("pub") || ["const", "unsafe", "extern", "\"C\"", "async"].contains(&word)
        });
        if !is_function || line.ends_with(['}', ';']) {
            continue;
        }
        let end = lines[start..].iter().position(|line| *line == format!("{indent}}}"));
        let name = name.split(|c| !is_word(c)).next().unwrap_or_default();
        found.extend(end.map(|end| (name.to_owned(), end + 1)));
    }
    found
}

#[test]
fn no_function_is_too_long() {
    assert_eq!(
        functions("fn a() {}\n    pub(super) fn b(\n    ) -> X {\n        c\n    }\n"),
        [("b".into(), 4)]
    );
    let mut long = Vec::new();
    let mut seen = 0;
    for (path, text) in sources() {
        for (name, lines) in functions(&text) {
            seen += 1;
            if lines > FUNCTION_LINES {
                long.push(format!("{}: {name} has {lines} lines", path.display()));
            }
        }
    }
    assert!(seen > 1000, "{seen}");
    assert!(long.is_empty(), "{}", long.join("\n"));
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
