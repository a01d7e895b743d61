//! The seams of the architecture (I1 to I3), as far as names in code show them.

use hindcast_tidy::{Finding, Tree, enforce, rules};

#[test]
fn the_engine_knows_no_outside_world() {
    const WORLD: [&str; 12] = [
        "SystemTime",
        "Instant",
        "rand",
        "getrandom",
        "tokio",
        "async",
        "std::net",
        "std::env",
        "std::process",
        "serde",
        "serde_json",
        "tracing_subscriber",
    ];
    let tree = Tree::load();
    enforce(tree.rust_below("crates/engine/src/"), |f| {
        let mut found = rules::forbidden(&f.text, &WORLD, "not in the engine (I1)");
        found.extend(rules::clock(&f.text));
        found
    });
}

#[test]
fn system_calls_stay_below_the_disk_seam() {
    let tree = Tree::load();
    let above =
        tree.rust_below("crates/engine/src/").filter(|f| !f.path.starts_with("crates/engine/src/disk/"));
    enforce(above, |f| {
        rules::forbidden(&f.text, &["rustix", "libc", "std::fs", "std::os"], "only below disk/ (I3)")
    });
}

#[test]
fn targets_know_only_block_devices() {
    const ALLOWED: [&str; 4] = ["device", "Error", "ErrorKind", "Result"];
    let tree = Tree::load();
    enforce(tree.rust_below("crates/target/src/"), |file| {
        rules::names_from(&file.text, "hindcast_engine")
            .into_iter()
            .filter(|(_, name)| !ALLOWED.contains(&name.as_str()))
            .map(|(line, name)| Finding { line, what: format!("a target uses hindcast_engine::{name} (I1)") })
            .collect()
    });
}

/// Every table of the catalog is in the backup of the metadata. A table that the backup leaves out
/// would be lost with the catalog.
#[test]
fn every_table_of_the_catalog_is_backed_up() {
    let tree = Tree::load();
    let folder = "crates/engine/src/catalog/";
    let list = tree.files.iter().find(|file| file.path == format!("{folder}rows.rs"));
    let list = &list.expect("the list of tables is in rows.rs").text;
    let mut tables = 0;
    for file in tree.rust_below(folder) {
        for definition in file.text.split("const ").skip(1) {
            let Some((name, rest)) = definition.split_once(':') else { continue };
            let end = rest.find(';').unwrap_or(rest.len());
            if rest[..end].contains("TableDefinition::new(") {
                tables += 1;
                assert!(list.contains(&format!("::{name});")), "{}: table {name} is in no backup", file.path);
            }
        }
    }
    assert!(tables > 15, "only {tables} tables were found");
}
