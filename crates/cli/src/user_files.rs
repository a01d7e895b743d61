//! Files that the program keeps for a person, below `~/.config/hindcast`.

use crate::failure::Failure;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns the path of a file. `what` says what can't be remembered without a home directory.
pub(crate) fn path(name: &str, what: &str) -> Result<PathBuf, Failure> {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = given("XDG_CONFIG_HOME").or_else(|| Some(given("HOME")?.join(".config")));
    let config = config.ok_or_else(|| Failure::usage(format!("HOME is not set, so {what}")))?;
    Ok(config.join("hindcast").join(name))
}

/// Returns the text of a file, or an empty one if there is no file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|e| Failure::usage(format!("read {}: {e}", path.display()))),
    }
}

/// Makes the directory of a file, which only this person may look into.
fn make_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir))
}

/// Appends a line to a file.
pub(crate) fn append(path: &Path, line: &str) -> io::Result<()> {
    make_directory(path)?;
    let mut file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Replaces a file as a whole.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    make_directory(path)?;
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}
