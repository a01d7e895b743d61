//! Passwords: from a file, or from the terminal without showing them.

use crate::failure::Failure;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// Returns the password in a file. A line end at its end does not count.
pub(crate) fn from_file(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("--password-file {}: {e}", path.display())))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

/// Asks for a new password twice.
pub(crate) fn ask_twice() -> Result<String, Failure> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Failure::usage("there is no terminal to ask for the password: give --password-file FILE")
    })?;
    let first = ask(&terminal, "Password: ")?;
    match ask(&terminal, "The same again: ")? == first {
        true => Ok(first),
        false => Err(Failure::usage("the two passwords differ; nothing was changed")),
    }
}

/// A terminal that does not show what is typed. A drop restores it.
struct Quiet<'t> {
    terminal: &'t File,
    before: Termios,
}

impl<'t> Quiet<'t> {
    fn new(terminal: &'t File) -> std::io::Result<Quiet<'t>> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        quiet.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Quiet { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // There is nothing to do about a failure.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

fn ask(mut terminal: &File, question: &str) -> Result<String, Failure> {
    let _quiet = Quiet::new(terminal)?;
    terminal.write_all(question.as_bytes())?;
    let mut line = String::new();
    BufReader::new(terminal).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_end_with_a_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        for text in ["correct horse", "correct horse\n", "correct horse\r\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(from_file(&path).unwrap(), "correct horse");
        }
        assert!(from_file(&dir.path().join("none")).is_err());
    }
}
