//! Rules for every Rust file.

use hindcast_tidy::{Tree, enforce, rules};

/// Functions that are exceptions from the longest allowed length: (path, name, reason).
const LONG_FUNCTIONS: [(&str, &str, &str); 0] = [];

/// Modules that may contain `unsafe`: (path, reason). All of it belongs in one place (I3).
const UNSAFE_MODULES: [(&str, &str); 1] =
    [("crates/ring/src/lib.rs", "the kernel reads memory after the call that names it (decision 90)")];

#[test]
fn files_are_short() {
    let tree = Tree::load();
    enforce(tree.with_extension("rs"), |f| rules::file_length(&f.text));
}

#[test]
fn comments_are_narrow() {
    let tree = Tree::load();
    enforce(tree.with_extension("rs"), |f| rules::comment_width(&f.text));
}

/// Every name means one type in a crate, so that a reader does not have to ask which of two types
/// it means. The protocols of crates/target, and the commands of crates/cli and crates/bench, have
/// parallel modules. There the module is part of the name.
#[test]
fn a_name_means_one_type_of_a_crate() {
    let tree = Tree::load();
    for folder in ["crates/engine/src/", "crates/server/src/", "crates/sim/src/", "crates/api/src/"] {
        let mut known = std::collections::BTreeMap::new();
        for file in tree.rust_below(folder) {
            for (line, name) in rules::shared_types(&file.text) {
                let place = format!("{}:{line}", file.path);
                if let Some(other) = known.insert(name.clone(), place.clone()) {
                    panic!("{name} is two types, in {other} and {place}");
                }
            }
        }
        assert!(known.len() > 5, "{folder} has only {} types", known.len());
    }
}

#[test]
fn functions_are_short() {
    let tree = Tree::load();
    let allowed = |path: &str, name: &str| LONG_FUNCTIONS.iter().any(|(p, n, _)| *p == path && *n == name);
    enforce(tree.with_extension("rs"), |file| {
        let long = rules::function_length(&file.text);
        long.into_iter().filter(|(name, _)| !allowed(&file.path, name)).map(|(_, finding)| finding).collect()
    });
    for (path, name, reason) in LONG_FUNCTIONS {
        let file = tree.files.iter().find(|f| f.path == path);
        let still_long = file.is_some_and(|f| rules::function_length(&f.text).iter().any(|(n, _)| n == name));
        assert!(still_long, "{path}: {name} needs no exception any more ({reason})");
    }
}

#[test]
fn nothing_is_unfinished() {
    let tree = Tree::load();
    enforce(tree.with_extension("rs"), |f| rules::unfinished(&f.text));
}

#[test]
fn unsafe_stays_in_its_place() {
    let tree = Tree::load();
    let elsewhere =
        tree.with_extension("rs").filter(|f| UNSAFE_MODULES.iter().all(|(path, _)| f.path != *path));
    enforce(elsewhere, |f| rules::forbidden(&f.text, &["unsafe"], "allowed only in the modules listed (I3)"));
}

#[test]
fn modules_say_what_they_are_for() {
    let tree = Tree::load();
    enforce(tree.with_extension("rs"), |f| rules::module_doc(&f.text));
}
