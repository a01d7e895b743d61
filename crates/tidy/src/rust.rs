//! A small part of Rust's lexical grammar. It is enough to check code without its comments and
//! strings.

/// Replaces comments and literals of strings and characters by blanks. Every newline and every
/// other character keeps its place.
pub fn mask(source: &str) -> String {
    let mut lexer = Lexer { rest: source, out: String::with_capacity(source.len()) };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.out
}

struct Lexer<'a> {
    rest: &'a str,
    out: String,
}

impl Lexer<'_> {
    fn step(&mut self) {
        let boundary = !self.out.ends_with(is_word);
        if self.rest.starts_with("//") {
            self.blank(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.blank(block_comment(self.rest));
        } else if boundary && let Some(length) = raw_string(self.rest) {
            self.blank(length);
        } else if self.rest.starts_with('"') {
            self.blank(1 + quoted(&self.rest[1..], '"'));
        } else if let Some(length) = char_literal(self.rest) {
            self.blank(length);
        } else {
            let c = self.rest.chars().next().unwrap_or(' ');
            self.out.push(c);
            self.rest = &self.rest[c.len_utf8()..];
        }
    }

    fn blank(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.out.extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }
}

/// Returns whether a character can be in an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of a block comment, which may be nested.
fn block_comment(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Returns the length of a raw string: `r"…"`, `r#"…"#`, and their byte and C forms. Returns `None`
/// if the text does not begin with one.
fn raw_string(text: &str) -> Option<usize> {
    let body =
        text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let content = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - content.len();
    Some(content.find(&end).map_or(text.len(), |found| start + found + end.len()))
}

/// Returns the length of a literal without its opening quote, and with its closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a character literal. Returns `None` for other text, such as a lifetime.
fn char_literal(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    if body.starts_with('\\') {
        return Some(1 + quoted(body, '\''));
    }
    let c = body.chars().next()?;
    body[c.len_utf8()..].starts_with('\'').then_some(2 + c.len_utf8())
}

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Line number of `fn`, from 1.
    pub line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub lines: usize,
}

/// Finds all functions in masked code, nested functions too.
pub fn functions(masked: &str) -> Vec<Function> {
    words(masked, "fn")
        .filter_map(|at| {
            let rest = masked[at + 2..].trim_start();
            let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
            let end = if name.is_empty() { None } else { body_end(&masked[at..]) }?;
            let line = line_of(masked, at);
            Some(Function { name, line, lines: line_of(masked, at + end) - line + 1 })
        })
        .collect()
}

/// Returns the offset of the brace that ends the body of the function at the start of `text`.
/// Returns `None` for a function without a body.
fn body_end(text: &str) -> Option<usize> {
    let mut brackets = 0i32;
    let mut braces = 0i32;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the offsets of all whole words that are equal to `word`.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

/// Returns the line number of an offset, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_comments_and_literals() {
        let masked = |s: &str| mask(s).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(masked("a // fn b\nc"), "a c");
        assert_eq!(masked("a /* x /* y */ z */ b"), "a b");
        assert_eq!(masked(r#"f("a \" { b") + g"#), "f( ) + g");
        assert_eq!(masked("x(r#\"a \" { \"#) y"), "x( ) y");
        assert_eq!(masked("bar\"{\"z"), "bar z");
        assert_eq!(
            masked(r"match c { '{' | '\'' | '\u{7d}' => 'a: loop {} }"),
            "match c { | | => 'a: loop {} }"
        );
        assert_eq!(mask("/*\n\n*/\nfn").matches('\n').count(), 3);
        assert_eq!(mask("\"ä\n€\"x").chars().count(), "\"ä\n€\"x".chars().count());
    }

    #[test]
    fn finds_functions() {
        let source = "trait T {\n fn no_body(&self) -> [u8; 4];\n}\nfn long<F: Fn(u8)>(\n f: F,\n) -> [u8; 2] {\n if x {\n }\n}\n\
                      type P = fn(u8) -> u8;\n";
        let found = functions(&mask(source));
        assert_eq!(found, [Function { name: "long".into(), line: 4, lines: 6 }]);
    }
}
