//! The layers of the crates: which module may import from which.

use hindcast_tidy::{Tree, layers::Layers};

/// The layers of the engine, bottom to top. A folder imports only folders before it in this list.
/// docs/ARCHITECTURE.md describes each folder.
const ENGINE: Layers<'_> = Layers {
    root: "crates/engine/src/",
    order: &[
        // Basic types and tools.
        "error",
        "codec",
        "units",
        "hash",
        "ids",
        "world",
        "fault",
        "rule",
        "device",
        "settings",
        "clock",
        "area",
        "disk",
        "health",
        "info",
        "shortage",
        "pace",
        "throttle",
        // Stored data, each kind by itself.
        "staging",
        "journal",
        "catalog",
        "cdp::log",
        "generation",
        "branch",
        "space",
        "damage",
        "repairs",
        "grace",
        "map",
        "sums",
        // All parts of a pool together, control operations, and content in its place.
        "core",
        "control",
        "verified",
        "placed",
        "cdp::write",
        // Work on the parts of a pool.
        "destage",
        "cdp::moment",
        "upkeep",
        "sequence",
        "policies",
        // Objects and operations that users have.
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

/// The layers of the server, bottom to top.
const SERVER: Layers<'_> = Layers {
    root: "crates/server/src/",
    order: &[
        // Basic types and tools.
        "world",
        "atomic_file",
        "realtime",
        "periodic",
        "notify",
        "identity",
        "audit",
        "certificate",
        "listen",
        "web",
        "freeze",
        "receivers",
        "passthrough",
        "severities",
        "same",
        "convert",
        "settings",
        "events",
        "latency",
        "activity",
        "task_kinds",
        "progress",
        "exports_running",
        "last_changes",
        "stream_places",
        "log_lines",
        "logging",
        "config",
        // Modules that need the pool and nothing else of the server.
        "clones",
        "lineage",
        "moments",
        "anchor_tuner",
        "maintenance",
        "backups",
        "traces",
        "data_directory",
        "schedule",
        "groups",
        "space_trend",
        "held_names",
        "views",
        "file_readers",
        // The targets.
        "iscsi",
        "nbd",
        // Files, and the opening of the pool.
        "files",
        "reidentify",
        "open_pool",
        "host_paths",
        "descriptors",
        // All parts of a running server together.
        "app",
        // Work of a running server.
        "writable_snapshots",
        "snapshots",
        "recovery",
        "scheduler",
        "health",
        "notices",
        "metrics",
        "clients",
        "live",
        "tasks",
        "timeline",
        "changed",
        "view_requests",
        "trash",
        "grouped",
        "access",
        // Interfaces that operators reach.
        "http",
        "daemon",
    ],
    parts: &[("App", "app")],
};

/// The layers of the target crate, bottom to top.
const TARGET: Layers<'_> = Layers {
    root: "crates/target/src/",
    order: &[
        "net",
        // Basic types of the SCSI device server.
        "scsi::sense",
        "scsi::cdb",
        "scsi::events",
        "scsi::outcome",
        "scsi::ports",
        "scsi::transport_id",
        "scsi::state",
        "scsi::reservation",
        "scsi::persist",
        // Objects of the SCSI device server.
        "scsi::lu",
        "scsi::registrants",
        "scsi::identity",
        "scsi::target",
        // Commands of the SCSI device server.
        "scsi::opcodes",
        "scsi::command",
        "scsi::medium",
        "scsi::mode",
        "scsi::log",
        "scsi::alua",
        "scsi::copy",
        "scsi::provisioning",
        "scsi::verify",
        "scsi::inquiry",
        "scsi::reports",
        "scsi::reserve",
        "scsi::sanitize",
        "scsi::table",
        "scsi::dispatch",
        "scsi",
        // NBD.
        "nbd::client",
        "nbd::codec",
        "nbd::stats",
        "nbd::option_data",
        "nbd::meta_context",
        "nbd::options",
        "nbd::handshake",
        "nbd::tls",
        "nbd::exec",
        "nbd::registry",
        "nbd::conn",
        "nbd::serving",
        "nbd::attend",
        "nbd::session",
        "nbd::server",
        "nbd",
        // Basic types of iSCSI, and the login.
        "iscsi::access",
        "iscsi::text",
        "iscsi::pdu",
        "iscsi::config",
        "iscsi::params",
        "iscsi::stats",
        "iscsi::chap",
        "iscsi::targets",
        "iscsi::refusal",
        "iscsi::refusals",
        "iscsi::auth",
        "iscsi::login",
        // Parts of a session and of its connections.
        "iscsi::window",
        "iscsi::news",
        "iscsi::exchange",
        "iscsi::active",
        "iscsi::condition",
        "iscsi::reply",
        "iscsi::work",
        "iscsi::transfer",
        "iscsi::record",
        "iscsi::session",
        "iscsi::registry",
        "iscsi::conn",
        // Work of connections.
        "iscsi::discovery",
        "iscsi::manage",
        "iscsi::inline",
        "iscsi::serving",
        "iscsi::attend",
        "iscsi::command",
        "iscsi::serve",
        "iscsi::server",
        "iscsi",
    ],
    parts: &[],
};

/// The crates, and the titles of the sections of docs/ARCHITECTURE.md that have their pictures.
const CRATES: [(Layers<'_>, &str); 3] = [
    (ENGINE, "## Layers of the engine"),
    (SERVER, "## Layers of the server"),
    (TARGET, "## Layers of the target crate"),
];

/// Crates without circles. In a circle, modules import each other, directly or through others.
const WITHOUT_CIRCLES: [Layers<'_>; 2] = [SERVER, TARGET];

/// Helpers of tests. They may use everything: (path, reason).
const TESTS: [(&str, &str); 6] = [
    ("crates/engine/src/testing/", "fixtures of tests"),
    ("crates/engine/src/fuzzing.rs", "entry points of fuzz targets"),
    ("crates/engine/src/cdp/descriptors.rs", "a test of whole pools"),
    ("crates/server/src/testing.rs", "fixtures of unit tests"),
    ("crates/server/src/fuzzing.rs", "entry points of fuzz targets"),
    ("crates/server/src/http/fuzzing.rs", "entry points of fuzz targets"),
];

/// Returns the files of a crate that are no tests: (path, text).
fn files<'t>(tree: &'t Tree, root: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    let is_test = |path: &str| {
        path.ends_with("tests.rs")
            || path.contains("/tests/")
            || TESTS.iter().any(|(test, _)| path.starts_with(*test))
    };
    tree.rust_below(root).filter(move |f| !is_test(&f.path)).map(|f| (f.path.as_str(), f.text.as_str()))
}

#[test]
fn modules_import_only_what_lies_below() {
    let tree = Tree::load();
    let broken = CRATES.iter().flat_map(|(layers, _)| layers.broken(files(&tree, layers.root)));
    let lines: Vec<String> = broken.map(|(path, f)| format!("{path}:{}: {}", f.line, f.what)).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    for (path, reason) in TESTS {
        assert!(tree.files.iter().any(|f| f.path.starts_with(path)), "{path} is gone ({reason})");
    }
}

#[test]
fn no_modules_import_each_other() {
    let tree = Tree::load();
    for layers in WITHOUT_CIRCLES {
        let circles = layers.circles(files(&tree, layers.root));
        assert!(circles.is_empty(), "{}: {circles:?}", layers.root);
    }
}

#[test]
fn the_pictures_of_the_layers_have_all_of_them() {
    let tree = Tree::load();
    let page = tree.files.iter().find(|f| f.path == "docs/ARCHITECTURE.md").expect("docs/ARCHITECTURE.md");
    for (layers, title) in CRATES {
        let section = page.text.split(title).nth(1).expect("the section on layers");
        let picture = section.split("```").nth(1).expect("the picture");
        let names: Vec<&str> = picture
            .split(|c: char| !c.is_alphanumeric() && !"/_".contains(c))
            .map(|name| name.trim_end_matches('/'))
            .collect();
        for layer in layers.order.iter().flat_map(|entry| entry.split(' ')).filter(|layer| *layer != "cdp") {
            // The target crate's folders are protocols. Its picture shows the modules of each by
            // themselves.
            let shown = match layers.root == TARGET.root {
                true => layer.rsplit("::").next().unwrap_or(layer).to_owned(),
                false => layer.replace("::", "/"),
            };
            assert!(names.contains(&shown.as_str()), "{title}: {layer} is not in the picture");
        }
    }
}
