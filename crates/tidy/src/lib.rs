//! House rules of this repository. Ordinary tests check them over all of its files.
//!
//! A rule is a function from a text to its findings. Each rule has a test that shows what the rule
//! catches. The files in `tests/` apply the rules to every file that git knows. A finding reads
//! `path:line: what`.

pub mod layers;
pub mod rules;
pub mod rust;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// Path relative to the root, with `/` as separator.
    pub path: String,
    /// Content of the file.
    pub text: String,
}

/// The text files that git tracks, and new files that git does not ignore.
#[derive(Debug)]
pub struct Tree {
    /// Root of the working tree.
    pub root: PathBuf,
    /// All files, sorted by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the tree that contains this crate. Binary files are left out.
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

    /// Returns the files with this extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |f| f.path.rsplit_once('.').is_some_and(|(_, e)| e == extension))
    }

    /// Returns the Rust files below a folder.
    pub fn rust_below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a File> {
        self.with_extension("rs").filter(move |f| f.path.starts_with(folder))
    }
}

/// A place in a text that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Line number, from 1.
    pub line: usize,
    /// Description of what is wrong.
    pub what: String,
}

/// Applies a rule to files. Panics with all findings if there are any, and if there are no files.
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
