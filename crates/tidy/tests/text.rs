//! Rules for every text file.

use hindcast_tidy::{Finding, Tree, enforce, rules};

/// Written by programs, or kept byte for byte.
fn generated(path: &str) -> bool {
    path.ends_with("Cargo.lock") || path.contains("/corpus/") || path == "LICENSE"
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
