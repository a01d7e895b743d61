//! A check whether the server could read its own files beside the storage. It needs no running
//! server and changes nothing.

use crate::atomic_file::DurableFile;
use crate::identity::{tokens, users};
use crate::{audit, certificate, groups, iscsi, schedule, views};
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, Result};
use std::sync::Arc;

/// A file of the data directory that the server could not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedFile {
    /// Name of the file.
    pub name: String,
    /// What is wrong with the file, and what to do.
    pub why: String,
}

/// Reads the schedules, the groups, the tokens, the users, the certificate, the targets, the end of
/// the audit and the states of logical units as the server would. Returns the files that the server
/// would refuse.
pub fn check_files(dir: &Arc<dyn Dir>) -> Result<Vec<DamagedFile>> {
    let file = |name: &str, kind, version| DurableFile::new(dir.clone(), name, kind, version);
    let read = |name: &str, kind, version, decode: &dyn Fn(&[u8]) -> Result<()>| {
        file(name, kind, version).read().and_then(|content| content.map_or(Ok(()), |bytes| decode(&bytes)))
    };
    let mut results = Vec::new();
    let (name, kind, version) = schedule::STORED;
    results.push((name.to_owned(), read(name, kind, version, &schedule::verify)));
    let (name, kind, version) = groups::STORED;
    results.push((name.to_owned(), read(name, kind, version, &groups::verify)));
    let (name, kind, version) = views::STORED;
    results.push((name.to_owned(), read(name, kind, version, &views::verify)));
    let (name, kind, version) = tokens::STORED;
    results.push((name.to_owned(), read(name, kind, version, &tokens::verify)));
    let (name, kind, version) = users::STORED;
    results.push((name.to_owned(), read(name, kind, version, &users::verify)));
    let (name, kind, version) = certificate::STORED;
    results.push((name.to_owned(), read(name, kind, version, &certificate::verify)));
    let (name, kind, version) = audit::STORED;
    results.push((name.to_owned(), read(name, kind, version, &audit::verify)));
    let (name, kind, version) = iscsi::STORED;
    results.push((name.to_owned(), read(name, kind, version, &iscsi::verify)));
    let names = dir.list().map_err(|e| Error::io("list the data directory", e))?;
    for name in names.into_iter().filter(|name| iscsi::is_lu_file(name)) {
        let result = read(&name, iscsi::LU_KIND, iscsi::LU_VERSION, &|_| Ok(()));
        results.push((name, result));
    }
    let damaged =
        |(name, result): (String, Result<()>)| Some(DamagedFile { name, why: result.err()?.to_string() });
    Ok(results.into_iter().filter_map(damaged).collect())
}
