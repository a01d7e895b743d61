//! The layers of the crates: which folder may import from which.

use hindcast_tidy::{Tree, layers::Layers};

/// The engine, bottom to top: a folder imports only those before it. docs/ARCHITECTURE.md says what
/// each is for.
const ENGINE: Layers<'_> = Layers {
    root: "crates/engine/src/",
    order: &[
        // Words and tools.
        "error",
        "codec",
        "units",
        "hash",
        "world",
        "fault",
        "device",
        "settings",
        "clock",
        "disk",
        "health",
        "info",
        "shortage",
        "pace",
        "throttle",
        // What is stored, each kind by itself.
        "staging",
        "journal",
        "catalog",
        "cdp::log",
        "generation",
        "branch",
        "space",
        "damage",
        "grace",
        "map",
        // All parts of a pool together, control operations, and content that is in place.
        "core",
        "control",
        "placed",
        "cdp::write",
        // Work on them.
        "destage",
        "cdp::moment",
        "upkeep",
        "sequence",
        "policies",
        // What users have.
        "volume",
        "pool",
        "cdp",
        "stream",
        "backup",
        "check",
        "salvage",
    ],
    parts: &[("Core", "core"), ("Destager", "destager"), ("Pool", "pool")],
};

/// Helpers of tests, which may use everything: (path, reason).
const TESTS: [(&str, &str); 3] = [
    ("crates/engine/src/testing.rs", "fixtures of unit tests"),
    ("crates/engine/src/fuzzing.rs", "entry points of fuzz targets"),
    ("crates/engine/src/cdp/descriptors.rs", "a test of whole pools"),
];

#[test]
fn folders_of_the_engine_import_only_what_lies_below() {
    let tree = Tree::load();
    let is_test = |path: &str| path.ends_with("tests.rs") || TESTS.iter().any(|(test, _)| path == *test);
    let files = tree.rust_below(ENGINE.root).filter(|f| !is_test(&f.path));
    let broken = ENGINE.broken(files.map(|f| (f.path.as_str(), f.text.as_str())));
    let lines: Vec<String> =
        broken.iter().map(|(path, f)| format!("{path}:{}: {}", f.line, f.what)).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    for (path, reason) in TESTS {
        assert!(tree.files.iter().any(|f| f.path == path), "{path} is gone ({reason})");
    }
}

#[test]
fn the_picture_of_the_layers_has_all_of_them() {
    let tree = Tree::load();
    let page = tree.files.iter().find(|f| f.path == "docs/ARCHITECTURE.md").expect("docs/ARCHITECTURE.md");
    let section = page.text.split("## Layers of the engine").nth(1).expect("the section on layers");
    let picture = section.split("```").nth(1).expect("the picture");
    let names: Vec<&str> = picture.split(|c: char| !c.is_alphanumeric() && !"/_".contains(c)).collect();
    for layer in ENGINE.order.iter().filter(|layer| **layer != "cdp") {
        assert!(names.contains(&layer.replace("::", "/").as_str()), "{layer} is not in the picture");
    }
}
