//! The rules about single files: text, code, and lengths.

use crate::Finding;
use crate::rust::{self, line_of, mask, words};

/// Longest file that is allowed, in lines.
pub const MAX_FILE_LINES: usize = 700;
/// Longest function that is allowed, in lines.
pub const MAX_FUNCTION_LINES: usize = 70;
/// Widest comment that is allowed, in columns, with its indentation.
pub const MAX_COMMENT_WIDTH: usize = 100;

fn finding(line: usize, what: impl Into<String>) -> Finding {
    Finding { line, what: what.into() }
}

/// Finds white space that breaks the rule. Lines end in LF alone, without white space before it. A
/// file ends in one newline.
pub fn white_space(text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (i, line) in text.split('\n').enumerate() {
        if line.ends_with('\r') {
            found.push(finding(i + 1, "line end is not LF alone"));
        } else if line.ends_with([' ', '\t']) {
            found.push(finding(i + 1, "white space at the line's end"));
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        found.push(finding(text.lines().count(), "the file must end in one newline"));
    }
    found
}

/// Finds notes that belong into an issue, and words that must never get into the repository. The
/// words are places on the machine of a developer, and hosts that packages come from. They are
/// spelled in halves, because this file is checked too.
pub fn words_to_avoid(text: &str) -> Vec<Finding> {
    const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
    const PLACES: [&str; 12] = [
        concat!("shar", "ed/design"),
        concat!("shar", "ed/mission"),
        concat!("shar", "ed/measured"),
        concat!("shar", "ed/papers"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("crates", ".io"),
        concat!("pypi", ".org"),
        concat!("registry.", "npmjs"),
        concat!("deb.", "debian.org"),
    ];
    let mut found: Vec<Finding> = NOTES
        .iter()
        .flat_map(|note| {
            words(text, note)
                .map(move |at| finding(line_of(text, at), format!("{note} belongs into an issue")))
        })
        .collect();
    for place in PLACES {
        found.extend(
            text.match_indices(place).map(|(at, _)| finding(line_of(text, at), format!("mentions {place}"))),
        );
    }
    found
}

/// Finds comments that are wider than [`MAX_COMMENT_WIDTH`]. Rows of tables and comments with links
/// may be wider.
pub fn comment_width(source: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (i, line) in source.lines().enumerate() {
        let comment = line.trim_start();
        let text = comment.trim_start_matches(['/', '!']).trim_start();
        let may_be_wide = text.starts_with('|') || comment.contains("://");
        let width = line.chars().count();
        if comment.starts_with("//") && !may_be_wide && width > MAX_COMMENT_WIDTH {
            found.push(finding(
                i + 1,
                format!("a comment of {width} columns: wrap it at {MAX_COMMENT_WIDTH}"),
            ));
        }
    }
    found
}

/// Returns the types that a module shares with other modules of its crate or with other crates:
/// (line, name).
pub fn shared_types(source: &str) -> Vec<(usize, String)> {
    let mut code = mask(source);
    if let Some(tests) = code.find("#[cfg(test)]\nmod tests {") {
        code.truncate(tests);
    }
    let mut found = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let Some(rest) = line.strip_prefix("pub") else { continue };
        let rest = rest.strip_prefix("(crate)").or_else(|| rest.strip_prefix("(super)")).unwrap_or(rest);
        let mut words = rest.split_whitespace();
        if matches!(words.next(), Some("struct" | "enum" | "trait" | "type"))
            && let Some(name) = words.next()
        {
            found.push((i + 1, name.chars().take_while(|c| rust::is_word(*c)).collect()));
        }
    }
    found
}

/// Finds a file that is longer than [`MAX_FILE_LINES`]. Such a file is too long to be read to its
/// end.
pub fn file_length(text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= MAX_FILE_LINES {
        return Vec::new();
    }
    vec![finding(lines, format!("{lines} lines, more than {MAX_FILE_LINES}: split it"))]
}

/// Finds functions that are longer than [`MAX_FUNCTION_LINES`]. Such functions do not fit on a
/// screen. Returns their names with the findings.
pub fn function_length(source: &str) -> Vec<(String, Finding)> {
    rust::functions(&mask(source))
        .into_iter()
        .filter(|f| f.lines > MAX_FUNCTION_LINES)
        .map(|f| {
            let what = format!("function {} has {} lines, more than {MAX_FUNCTION_LINES}", f.name, f.lines);
            (f.name, finding(f.line, what))
        })
        .collect()
}

/// Finds unfinished code, temporary code, and tests that do not run.
pub fn unfinished(source: &str) -> Vec<Finding> {
    const MACROS: [&str; 4] = ["todo", "unimplemented", "dbg", "unreachable_unchecked"];
    let code = mask(source);
    let mut found = Vec::new();
    for name in MACROS {
        for at in words(&code, name) {
            if code[at + name.len()..].starts_with(['!', '(']) {
                found.push(finding(line_of(&code, at), format!("{name} must not stay")));
            }
        }
    }
    for at in words(&code, "ignore") {
        if code[..at].trim_end().ends_with("#[") {
            found.push(finding(line_of(&code, at), "a test that does not run"));
        }
    }
    found
}

/// Finds words in code that are not allowed in a place. `why` becomes part of the finding.
pub fn forbidden(source: &str, list: &[&str], why: &str) -> Vec<Finding> {
    let code = mask(source);
    let mut found = Vec::new();
    for word in list {
        found.extend(words(&code, word).map(|at| finding(line_of(&code, at), format!("{word}: {why}"))));
    }
    found
}

/// Finds uses of `std::time` other than `Duration`. The engine has no clock of its own.
pub fn clock(source: &str) -> Vec<Finding> {
    let code = mask(source);
    words(&code, "std::time")
        .filter(|at| !code[at + "std::time".len()..].starts_with("::Duration"))
        .map(|at| {
            finding(line_of(&code, at), "std::time: the engine's clock is the world's (I1); only Duration")
        })
        .collect()
}

/// Returns the names that code takes from the root of a crate, by `krate::name` and `krate::{name,
/// …}`: (line, name).
pub fn names_from(source: &str, krate: &str) -> Vec<(usize, String)> {
    let code = mask(source);
    let mut names = Vec::new();
    for at in words(&code, krate) {
        let Some(path) = code[at + krate.len()..].strip_prefix("::") else {
            continue;
        };
        let line = line_of(&code, at);
        let items: Vec<String> = match path.strip_prefix('{') {
            None => vec![first_name(path)],
            Some(group) => top_level_items(group).iter().map(|item| first_name(item)).collect(),
        };
        names.extend(items.into_iter().filter(|name| !name.is_empty()).map(|name| (line, name)));
    }
    names
}

fn first_name(path: &str) -> String {
    path.trim_start().chars().take_while(|c| rust::is_word(*c) || *c == '*').collect()
}

/// Returns the items of a use group, up to its closing brace.
fn top_level_items(group: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0;
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            '{' => depth += 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = items.last_mut() {
            last.push(c);
        }
    }
    items
}

/// Finds a module that does not begin with a `//!` comment, which says what the module is for.
pub fn module_doc(source: &str) -> Vec<Finding> {
    let first = source.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.starts_with("//! ") {
        Vec::new()
    } else {
        vec![finding(1, "a module begins with a //! comment")]
    }
}

/// Returns the targets of relative links in Markdown, without their fragments: (line, target).
/// Links in code spans and code blocks do not count.
pub fn relative_links(markdown: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut fenced = false;
    for (i, line) in markdown.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece between back-quotes is code.
        for text in line.split('`').step_by(2) {
            for (_, rest) in text.match_indices("](").map(|(at, m)| text.split_at(at + m.len())) {
                let Some((target, _)) = rest.split_once(')') else {
                    continue;
                };
                let target = target.split(['#', ' ']).next().unwrap_or("");
                if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                    links.push((i + 1, target.to_owned()));
                }
            }
        }
    }
    links
}

/// Returns the keys of a table of a TOML file. The file must have one key on each line.
pub fn toml_keys(toml: &str, table: &str) -> Vec<String> {
    let header = format!("[{table}]");
    toml.lines()
        .skip_while(|line| line.trim() != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| {
            let (key, _) = line.split_once('=')?;
            let key = key.trim().trim_end_matches(".workspace");
            (!key.is_empty() && !key.starts_with('#')).then(|| key.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_seen() {
        assert_eq!(white_space("a\nb\n"), []);
        assert_eq!(white_space("a \nb\n").len(), 1);
        assert_eq!(white_space("a\r\n").len(), 1);
        assert_eq!(white_space("a").len(), 1);
        assert_eq!(white_space("a\n\n").len(), 1);
    }

    #[test]
    fn words_are_seen() {
        assert_eq!(words_to_avoid("fine, mktemp XXXXXX\n"), []);
        assert_eq!(words_to_avoid(concat!("// FIX", "ME later\n")).len(), 1);
        assert_eq!(words_to_avoid(concat!("see shar", "ed/design.md and /ho", "me/me\n")).len(), 2);
    }

    #[test]
    fn lengths_are_seen() {
        assert_eq!(file_length(&"x\n".repeat(MAX_FILE_LINES)), []);
        assert_eq!(file_length(&"x\n".repeat(MAX_FILE_LINES + 1)).len(), 1);
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "x;\n".repeat(lines - 2));
        assert_eq!(function_length(&function(MAX_FUNCTION_LINES)), []);
        assert_eq!(function_length(&function(MAX_FUNCTION_LINES + 1)).len(), 1);
    }

    #[test]
    fn wide_comments_are_seen() {
        let wide = "x ".repeat(60);
        assert_eq!(comment_width(&format!("    /// {wide}\n//! {wide}\nlet a = 1; // {wide}\n")).len(), 2);
        assert_eq!(comment_width(&format!("//! | {wide}\n/// see https://{wide}\n/// short\n")), []);
    }

    #[test]
    fn shared_types_are_seen() {
        let source = "pub struct A;\npub(crate) enum B<T> {}\nstruct C;\npub(super) type D = u8;\npub fn e() {}\n\
                      #[cfg(test)]\nmod tests {\npub struct F;\n}\n";
        let names: Vec<String> = shared_types(source).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["A", "B", "D"]);
    }

    #[test]
    fn unfinished_code_is_seen() {
        let source = concat!("// todo!\nfn f() { \"todo!\"; todo", "!() }\n#[ignore", "]\nfn ignore() {}\n");
        assert_eq!(unfinished(source).iter().map(|f| f.line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(unfinished("#[ignore = \"slow\"]\nfn f() {}\n").len(), 1);
    }

    #[test]
    fn seams_are_seen() {
        assert_eq!(clock("use std::time::Duration;\n"), []);
        assert_eq!(clock("use std::time::Instant;\n").len(), 1);
        assert_eq!(clock("use std::time::{Duration, Instant};\n").len(), 1);
        assert_eq!(forbidden("let tokio_like = 1;\n", &["tokio"], "no"), []);
        assert_eq!(forbidden("use tokio::net;\n", &["tokio"], "no").len(), 1);
        let names =
            names_from("use e::{a::{B, C}, d};\nfn f() -> e::Result<()> {}\nuse e;\nuse e::*;\n", "e");
        let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a", "d", "Result", "*"]);
    }

    #[test]
    fn documents_are_seen() {
        assert_eq!(module_doc("//! What.\n"), []);
        assert_eq!(module_doc("#![forbid(x)]\n").len(), 1);
        let links =
            relative_links("[a](b.md#c) `[x](y)` [d](https://e) [f](#g)\n```\n[h](i)\n```\n![j](k.svg)\n");
        assert_eq!(links, [(1, "b.md".to_owned()), (5, "k.svg".to_owned())]);
        assert_eq!(toml_keys("[a]\nx = 1\n\n[b]\n# c = 2\ny.workspace = true\nz = 3\n", "b"), ["y", "z"]);
    }
}
