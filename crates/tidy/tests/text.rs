//! Rules for every text file.

use hindcast_tidy::{Finding, Tree, enforce, rules};

/// Returns whether a file is written by a program or kept byte for byte.
fn generated(path: &str) -> bool {
    path.ends_with("Cargo.lock")
        || path.contains("/corpus/")
        || path.starts_with("crates/console/dist/")
        || path == "LICENSE"
}

#[test]
fn white_space() {
    let tree = Tree::load();
    enforce(tree.files.iter().filter(|f| !generated(&f.path)), |f| rules::white_space(&f.text));
}

#[test]
fn words_to_avoid() {
    let tree = Tree::load();
    enforce(tree.files.iter().filter(|f| !generated(&f.path)), |f| rules::words_to_avoid(&f.text));
}

#[test]
fn links_resolve() {
    let tree = Tree::load();
    enforce(tree.with_extension("md"), |file| {
        let folder = tree.root.join(&file.path);
        let folder = folder.parent().expect("a file has a folder");
        rules::relative_links(&file.text)
            .into_iter()
            .filter(|(_, target)| !folder.join(target).exists())
            .map(|(line, target)| Finding { line, what: format!("link to {target}, which does not exist") })
            .collect()
    });
}

#[test]
fn every_health_code_is_explained_to_the_operator() {
    let tree = Tree::load();
    let text = |path: &str| {
        let file = tree.files.iter().find(|f| f.path == path);
        file.unwrap_or_else(|| panic!("{path} is missing")).text.clone()
    };
    let page = text("docs/OPERATIONS.md");
    let mut codes = 0;
    for path in ["crates/engine/src/health.rs", "crates/server/src/health.rs"] {
        let text = text(path);
        for line in text.lines().filter(|l| l.contains("const ") && l.contains(": &str = \"")) {
            let code = line.split('"').nth(1).unwrap_or_default();
            assert!(page.contains(&format!("### `{code}`\n")), "{path}: {code} has no section");
            codes += 1;
        }
    }
    assert!(codes > 10, "only {codes} codes were found");
}
