//! Places in moments: how they are written, and the views through which they are read.

use crate::failure::Failure;
use crate::session::Session;
use crate::when::When;
use hindcast_api::{
    ClientError, CreateView, ErrorKind, FileEntry, FilePlace, Partition, PatchView, name_bytes,
};
use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

/// Lease of the view, and the time after which it is renewed.
const LEASE: Duration = Duration::from_secs(900);
const RENEW: Duration = Duration::from_secs(60);
/// Pause before a request is repeated for which the server has no place now, and how often it is.
const PAUSE: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 60;
/// Name of the view, for people who list views.
const NAME: &str = "hindcast files";

/// A place as it was written: `VOLUME@MOMENT:/PATH`.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) volume: String,
    pub(crate) when: When,
    pub(crate) path: String,
}

impl Written {
    /// Parses a place. No moment contains a colon before a slash.
    pub(crate) fn parse(text: &str) -> Result<Written, String> {
        let (address, path) = text.find(":/").map_or((text, "/"), |at| (&text[..at], &text[at + 1..]));
        let written = address.split_once('@').filter(|(volume, _)| !volume.is_empty());
        let (volume, moment) =
            written.ok_or_else(|| format!("{text:?} is no file of a moment: write VOLUME@MOMENT:/PATH"))?;
        Ok(Written { volume: volume.into(), when: When::parse(moment)?, path: path.into() })
    }
}

/// A moment whose files are read, through a view that ends with this.
pub(crate) struct Opened<'s> {
    session: &'s Session,
    view: String,
    partition: Option<u32>,
    renewed: Cell<Instant>,
}

impl<'s> Opened<'s> {
    pub(crate) fn new(
        session: &'s Session,
        written: &Written,
        partition: Option<u32>,
    ) -> Result<Self, Failure> {
        let moment = session.moment(&written.when)?;
        let new = CreateView {
            moment,
            lease_seconds: Some(LEASE.as_secs()),
            name: Some(NAME.into()),
            last_flush: false,
        };
        let view = session.client.create_view(&written.volume, &new)?.id;
        Ok(Opened { session, view, partition, renewed: Cell::new(Instant::now()) })
    }

    /// Keeps the view for as long as the command runs. The server keeps it while a file is read.
    pub(crate) fn renew(&self) -> Result<(), Failure> {
        if self.renewed.get().elapsed() > RENEW {
            let lease = PatchView { lease_seconds: Some(LEASE.as_secs()) };
            self.session.client.renew_view(&self.view, &lease)?;
            self.renewed.set(Instant::now());
        }
        Ok(())
    }

    fn place<'a>(&'a self, path: &'a str) -> Result<FilePlace<'a>, Failure> {
        self.renew()?;
        Ok(FilePlace { view: &self.view, partition: self.partition, path })
    }

    /// Reports that the command is done.
    pub(crate) fn done(&self, message: impl Display) -> Result<(), Failure> {
        self.session.output.done(message)
    }

    pub(crate) fn partitions(&self) -> Result<Vec<Partition>, Failure> {
        patiently(|| self.session.client.partitions(&self.view))
    }

    /// Returns the entry at a path, and all entries if it is a directory.
    pub(crate) fn list(&self, path: &str) -> Result<(FileEntry, Vec<FileEntry>), Failure> {
        let place = self.place(path)?;
        let client = &self.session.client;
        let mut page = patiently(|| client.files(&place, None))?;
        let mut entries = std::mem::take(&mut page.entries);
        while let Some(next) = page.next.take() {
            page = patiently(|| client.files(&place, Some(&next)))?;
            let goes_on = |last: &String| name_bytes(last) > name_bytes(&next);
            if !page.next.as_ref().is_none_or(goes_on) {
                return Err(Failure::Failed(format!("{path}: the directory has no end")));
            }
            entries.append(&mut page.entries);
        }
        Ok((page.itself, entries))
    }

    /// Writes the content of a file.
    pub(crate) fn content(&self, path: &str, out: &mut dyn Write) -> Result<u64, Failure> {
        let place = self.place(path)?;
        patiently(|| self.session.client.file(&place, 0, out))
    }
}

/// Repeats a request while the server has no place for it.
fn patiently<T>(mut request: impl FnMut() -> Result<T, ClientError>) -> Result<T, Failure> {
    for _ in 1..ATTEMPTS {
        match request() {
            Err(ClientError::Api(body)) if body.kind == ErrorKind::Busy => std::thread::sleep(PAUSE),
            answer => return Ok(answer?),
        }
    }
    Ok(request()?)
}

impl Drop for Opened<'_> {
    /// Ends the view. If that fails, it ends with its lease.
    fn drop(&mut self) {
        let _ = self.session.client.delete_view(&self.view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_moment_and_a_path() {
        for (text, path) in
            [("db@-1h:/etc/fstab", "/etc/fstab"), ("db@10:41:/a:/b", "/a:/b"), ("db@nightly", "/")]
        {
            let written = Written::parse(text).unwrap();
            assert_eq!((written.volume.as_str(), written.path.as_str()), ("db", path), "{text}");
        }
        for bad in ["db", "db:/etc", "@-1h:/etc", "db@", "db@:/etc", "db@-1h:etc"] {
            assert!(Written::parse(bad).is_err(), "{bad}");
        }
    }
}
