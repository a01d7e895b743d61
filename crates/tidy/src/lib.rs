//! House rules of this repository, checked by ordinary tests over its tree.
//!
//! A rule is a function from a text to its findings. A test of its own shows what the rule catches.
//! The files in `tests/` apply the rules to every file that git knows. A finding reads
//! `path:line: what`.

pub mod layers;
pub mod rules;
pub mod rust;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// Relative to the root, with `/`.
    pub path: String,
    /// Content.
    pub text: String,
}

/// The text files that git tracks, or would track.
#[derive(Debug)]
pub struct Tree {
    /// The root of the working tree.
    pub root: PathBuf,
    /// All of them, by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the tree this crate lies in. Binary files are left out.
    pub fn load() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("find the root");
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .expect("run git");
        assert!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
        let names = String::from_utf8(output.stdout).expect("names are UTF-8");
        let mut files: Vec<File> = names
            .split_terminator('\0')
            .filter_map(|name| {
                let bytes = std::fs::read(root.join(name)).ok()?;
                let text = String::from_utf8(bytes).ok()?;
                (!text.contains('\0')).then(|| File { path: name.to_owned(), text })
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(files.len() > 20, "only {} files: is this the repository?", files.len());
        Tree { root, files }
    }

    /// Files with this extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |f| f.path.rsplit_once('.').is_some_and(|(_, e)| e == extension))
    }

    /// Rust files below a folder.
    pub fn rust_below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a File> {
        self.with_extension("rs").filter(move |f| f.path.starts_with(folder))
    }
}

/// Something a rule objects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// Applies a rule to files; fails with all findings.
pub fn enforce<'a>(files: impl Iterator<Item = &'a File>, rule: impl Fn(&File) -> Vec<Finding>) {
    let mut report = String::new();
    let mut seen = 0;
    for file in files {
        seen += 1;
        for finding in rule(file) {
            report.push_str(&format!("{}:{}: {}\n", file.path, finding.line, finding.what));
        }
    }
    assert!(seen > 0, "the rule applied to no file");
    assert!(report.is_empty(), "\n{report}");
}
