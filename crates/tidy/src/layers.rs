//! Layers of a crate: each folder imports only from folders below it.
//!
//! Three things are checked:
//!
//! - *Imports*: what a `use`, or a path in code, names.
//! - *Circles*: whether modules import each other. Modules of one folder are checked too.
//! - *Calls of parts*: some types, for example the core of the engine, get methods in many folders.
//!   A call of such a method names no folder. So calls are compared with the places of the
//!   definitions.

use crate::Finding;
use crate::rust::{is_word, line_of, mask, words};
use std::collections::{BTreeMap, BTreeSet};

/// The layers of one crate.
pub struct Layers<'a> {
    /// Source folder of the crate, relative to the root, with a slash at the end.
    pub root: &'a str,
    /// Modules, bottom to top. A module is `catalog`, or `cdp::log` if the folders of one folder
    /// are in different layers. Modules in one string, with blanks between them, may import each
    /// other.
    pub order: &'a [&'a str],
    /// Types that get methods in several layers, and the name that code has for a value of each.
    pub parts: &'a [(&'a str, &'a str)],
}

/// A source file without its tests.
struct Module {
    /// Path of the module, like `a::b`. It is empty for the root of the crate.
    name: String,
    code: String,
}

impl Module {
    fn new(root: &str, path: &str, text: &str) -> Module {
        let inside = path.strip_prefix(root).unwrap_or(path).trim_end_matches(".rs");
        let name = inside.trim_end_matches("/mod").replace('/', "::");
        let mut code = mask(text);
        if let Some(tests) = code.find("#[cfg(test)]\nmod tests {") {
            code.truncate(tests);
        }
        Module { name: if name == "lib" { String::new() } else { name }, code }
    }

    /// Returns the absolute form of a path that may lead through the crate: `crate::a`, `super::b`,
    /// `child::c`. A path into another crate looks like the path of a child that does not exist.
    fn absolute(&self, path: &str) -> Option<String> {
        let mut own: Vec<&str> = self.name.split("::").collect();
        let mut parts = path.split("::").peekable();
        match *parts.peek()? {
            "crate" => {
                own.clear();
                parts.next();
            }
            "super" => {
                while parts.next_if_eq(&"super").is_some() {
                    own.pop();
                }
            }
            "self" => {
                parts.next();
            }
            _ => {}
        }
        own.extend(parts);
        Some(own.join("::"))
    }

    /// Returns the imports of the module: (position in the code, path).
    fn imports(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut code = self.code.clone();
        loop {
            let next = words(&code, "use").next();
            let Some(at) = next else { break };
            let Some(length) = code[at..].find(';') else { break };
            for path in leaves(&code[at + "use".len()..at + length], "") {
                found.extend(self.absolute(&path).map(|path| (at, path)));
            }
            // The `use` is blanked, so that no path in it counts twice.
            let blank: String =
                code[at..at + length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            code.replace_range(at..at + length, &blank);
        }
        for word in ["crate", "super"] {
            // A visibility is no import.
            let is_import = |at: &usize| !code[..*at].ends_with("pub(") && !code[..*at].ends_with("pub(in ");
            for at in words(&code, word).filter(is_import) {
                let path: String = code[at..].chars().take_while(|c| is_word(*c) || *c == ':').collect();
                found.extend(self.absolute(path.trim_end_matches(':')).map(|path| (at, path)));
            }
        }
        found
    }

    /// Returns the `impl` blocks of the type `of`: (beginning, end) in the code.
    fn blocks(&self, of: &str) -> Vec<(usize, usize)> {
        let head = format!("impl {of} {{\n");
        let starts = self.code.match_indices(&head).map(|(at, _)| at);
        starts.map(|at| (at, self.code[at..].find("\n}\n").map_or(self.code.len(), |end| at + end))).collect()
    }
}

/// Returns the paths of a use tree. `before` is the path in front of it.
fn leaves(tree: &str, before: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        return vec![format!("{before}{path}")];
    };
    let before = format!("{before}{}", head.trim());
    let body = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = body[start..at].trim();
                if !item.is_empty() {
                    found.extend(leaves(item, &before));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns the modules that the module `from` leads to. They include `from` only if it is in a
/// circle.
fn reached<'m>(edges: &BTreeMap<&'m str, BTreeSet<&'m str>>, from: &str) -> BTreeSet<&'m str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = edges[from].iter().copied().collect();
    while let Some(name) = next.pop() {
        if found.insert(name) {
            next.extend(&edges[name]);
        }
    }
    found
}

/// Returns the names of the functions that begin in a piece of code.
fn functions(code: &str) -> Vec<String> {
    words(code, "fn")
        .map(|at| code[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect())
        .collect()
}

/// Returns the calls `base.name(` in the code: (position, name). White space may be beside the dot.
fn calls(code: &str, base: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, base) {
        let Some(rest) = code[at + base.len()..].trim_start().strip_prefix('.') else { continue };
        let name: String = rest.trim_start().chars().take_while(|c| is_word(*c)).collect();
        let behind = &rest.trim_start()[name.len()..];
        if behind.starts_with('(') || behind.starts_with("::<") {
            found.push((at, name));
        }
    }
    found
}

impl Layers<'_> {
    /// Returns the number, from the bottom, and the name of the layer of a module or an item.
    fn layer(&self, path: &str) -> Option<(usize, &str)> {
        let is_in = |layer: &str| path == layer || path.starts_with(&format!("{layer}::"));
        let all = self.order.iter().enumerate().flat_map(|(n, entry)| entry.split(' ').map(move |l| (n, l)));
        all.filter(|(_, layer)| is_in(layer)).max_by_key(|(_, layer)| layer.len())
    }

    /// Returns all imports and calls in `files`, (path, text), that their layers do not allow. Each
    /// finding comes with the path of its file.
    pub fn broken<'f>(&self, files: impl Iterator<Item = (&'f str, &'f str)>) -> Vec<(String, Finding)> {
        let modules: Vec<(String, Module)> = files
            .map(|(path, text)| (path.to_owned(), Module::new(self.root, path, text)))
            .filter(|(_, module)| !module.name.is_empty())
            .collect();
        let defined = self.defined(&modules);
        let mut found = Vec::new();
        for (path, module) in &modules {
            let mut add =
                |at, what| found.push((path.clone(), Finding { line: line_of(&module.code, at), what }));
            let Some((own, layer)) = self.layer(&module.name) else {
                add(0, "it is in no layer".to_owned());
                continue;
            };
            for (at, import) in module.imports() {
                if let Some((number, other)) = self.layer(&import)
                    && number > own
                {
                    add(at, format!("{layer} imports {import}: {other} is above it"));
                }
            }
            for (at, name) in self.calls_of_parts(module) {
                if let Some((number, other)) = defined.get(&name)
                    && *number > own
                {
                    add(at, format!("{layer} calls {name}(), which is defined above it, in {other}"));
                }
            }
        }
        found
    }

    /// Returns the circles of modules that import each other, directly or through others. A circle
    /// has no entry in the result if [`Layers::order`] lists all of its modules in one string.
    pub fn circles<'f>(&self, files: impl Iterator<Item = (&'f str, &'f str)>) -> Vec<Vec<String>> {
        let modules: Vec<Module> = files.map(|(path, text)| Module::new(self.root, path, text)).collect();
        let names: BTreeSet<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        let module_of = |path: &str| {
            let is_in = |name: &&&str| path == **name || path.starts_with(&format!("{name}::"));
            names.iter().filter(is_in).max_by_key(|name| name.len()).copied()
        };
        let edges: BTreeMap<&str, BTreeSet<&str>> = modules
            .iter()
            .map(|module| {
                let to = module.imports().into_iter().filter_map(|(_, path)| module_of(&path));
                (module.name.as_str(), to.filter(|to| *to != module.name).collect())
            })
            .collect();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            edges.keys().map(|from| (*from, reached(&edges, from))).collect();
        let mut circles = BTreeSet::new();
        for (name, from_it) in reached.iter().filter(|(name, from_it)| from_it.contains(**name)) {
            let with = from_it.iter().filter(|other| reached[**other].contains(name));
            let circle: Vec<String> = with.map(|other| (*other).to_owned()).collect();
            let listed = |entry: &&str| circle.iter().all(|m| entry.split(' ').any(|l| l == m));
            if !self.order.iter().any(listed) {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// Returns, for each name of a method of a part, the lowest layer that defines it.
    fn defined(&self, modules: &[(String, Module)]) -> BTreeMap<String, (usize, String)> {
        let mut defined: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for (_, module) in modules {
            let Some((number, layer)) = self.layer(&module.name) else { continue };
            for (part, _) in self.parts {
                for (start, end) in module.blocks(part) {
                    for name in functions(&module.code[start..end]) {
                        let known = defined.entry(name).or_insert((number, layer.to_owned()));
                        if number < known.0 {
                            *known = (number, layer.to_owned());
                        }
                    }
                }
            }
        }
        defined
    }

    fn calls_of_parts(&self, module: &Module) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (part, value) in self.parts {
            found.extend(calls(&module.code, value));
            for (start, end) in module.blocks(part) {
                let own = calls(&module.code[start..end], "self");
                found.extend(own.into_iter().map(|(at, name)| (start + at, name)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: Layers<'_> =
        Layers { root: "c/src/", order: &["low", "core", "a::deep", "a"], parts: &[("Core", "core")] };

    fn broken(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = LAYERS.broken(files.iter().copied());
        found.into_iter().map(|(path, finding)| (path, finding.line)).collect()
    }

    #[test]
    fn imports_lead_down() {
        let fine = "//! Doc.\npub(super) fn f() {}\nuse crate::low::X;\nuse super::a;\nuse std::a;\n// crate::a::Y\n";
        assert_eq!(broken(&[("c/src/a/mod.rs", fine), ("c/src/lib.rs", "use crate::nothing;\n")]), []);
        for up in [
            "use crate::a::X;\n",
            "use crate::{low::Y, a::{self, X}};\n",
            "fn f() { crate::a::g(); }\n",
            "use super::a;\n",
        ] {
            assert!(!broken(&[("c/src/low.rs", up)]).is_empty(), "{up}");
        }
        // Tests may use everything.
        assert_eq!(broken(&[("c/src/low.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n")]), []);
    }

    #[test]
    fn folders_of_a_folder_may_be_layers() {
        assert_eq!(broken(&[("c/src/a/mod.rs", "use crate::a::deep::X;\n")]), []);
        assert_eq!(
            broken(&[("c/src/a/deep/x.rs", "\nuse super::super::Y;\n")]),
            [("c/src/a/deep/x.rs".into(), 2)]
        );
        assert_eq!(broken(&[("c/src/new.rs", "\n")]), [("c/src/new.rs".into(), 1)]);
    }

    #[test]
    fn circles_are_found_also_within_a_folder() {
        let mut files = vec![
            ("c/src/lib.rs", "pub use a::X;\n"),
            ("c/src/a/mod.rs", "mod b;\npub use b::X;\nuse std::fmt;\n"),
            ("c/src/a/b.rs", "use super::d::Y;\nuse crate::low;\n"),
            ("c/src/a/d.rs", "//! Not super::b.\n"),
            ("c/src/low.rs", ""),
        ];
        let circles = |files: &[(&str, &str)]| LAYERS.circles(files.iter().copied());
        assert!(circles(&files).is_empty());
        files[3].1 = "fn f() {\n    super::b::g();\n}\n";
        assert_eq!(circles(&files), [["a::b", "a::d"]]);
        files[3].1 = "use super::X;\n";
        assert_eq!(circles(&files), [["a", "a::b", "a::d"]], "through the parent");
        files[3].1 = "use super::b::X;\n";
        let listed = Layers { order: &["low", "a::b a::d", "a"], ..LAYERS };
        assert!(listed.circles(files.iter().copied()).is_empty(), "by their nature");
        assert!(listed.broken(files.iter().copied()).is_empty());
    }

    #[test]
    fn a_method_is_called_from_its_layer_or_above() {
        let core = "impl Core {\n    fn low(&self) {\n        self.high();\n    }\n}\n";
        let a = "impl Core {\n    fn high(&self) {\n        self.low();\n    }\n}\nfn f(core: &Core) {\n    core\n        .low();\n}\n";
        assert_eq!(broken(&[("c/src/core.rs", core), ("c/src/a/mod.rs", a)]), [("c/src/core.rs".into(), 3)]);
    }
}
