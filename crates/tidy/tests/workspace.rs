//! Rules for the workspace's manifests.

use hindcast_tidy::{File, Tree, rules};

fn manifest<'a>(tree: &'a Tree, path: &str) -> &'a File {
    tree.files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} is missing"))
}

fn crates(tree: &Tree) -> Vec<&File> {
    let found: Vec<&File> = tree
        .files
        .iter()
        .filter(|f| f.path.starts_with("crates/") && f.path.ends_with("/Cargo.toml"))
        .collect();
    assert!(found.len() > 2, "only {} crates", found.len());
    found
}

#[test]
fn every_crate_takes_the_shared_settings() {
    let tree = Tree::load();
    for file in crates(&tree) {
        let lints = file.text.split("[lints]").nth(1).unwrap_or("");
        assert!(
            lints.trim_start().starts_with("workspace = true"),
            "{}: no [lints] workspace = true",
            file.path
        );
        for key in ["version", "edition", "rust-version", "license"] {
            let line = format!("{key}.workspace = true");
            assert!(file.text.lines().any(|l| l.trim() == line), "{}: no {line}", file.path);
        }
        assert!(file.text.contains("\ndescription = "), "{}: no description", file.path);
    }
}

#[test]
fn every_crate_is_a_member() {
    let tree = Tree::load();
    let root = manifest(&tree, "Cargo.toml");
    for file in crates(&tree) {
        let folder = file.path.trim_end_matches("/Cargo.toml");
        let listed = root.text.contains(&format!("\"{folder}\"")) || root.text.contains("\"crates/*\"");
        assert!(listed, "{folder} is not a member of the workspace");
    }
}

#[test]
fn versions_are_chosen_once() {
    let tree = Tree::load();
    for file in crates(&tree) {
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let section = file.text.split(&format!("\n[{table}]\n")).nth(1).unwrap_or("");
            for line in section.lines().take_while(|l| !l.starts_with('[')).filter(|l| l.contains('=')) {
                assert!(
                    line.contains("workspace = true"),
                    "{}: {line:?} is not from the workspace",
                    file.path
                );
            }
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let tree = Tree::load();
    let reasons = manifest(&tree, "docs/decisions/dependencies.md");
    let names = rules::toml_keys(&manifest(&tree, "Cargo.toml").text, "workspace.dependencies");
    assert!(names.len() > 5, "only {names:?}");
    for name in names.iter().filter(|n| !n.starts_with("hindcast-")) {
        let row = reasons.text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let reason = row.and_then(|line| line.split('|').nth(2)).unwrap_or("").trim();
        assert!(reason.len() > 10, "docs/decisions/dependencies.md gives no reason for `{name}`");
    }
}
