//! A list of records in a file of the data directory, for example all tokens.

use crate::atomic_file::DurableFile;
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// All records, and the file that stores them.
pub(crate) struct Records<T> {
    file: DurableFile,
    state: RwLock<Result<Arc<Vec<T>>>>,
    /// Held during a change, so that readers wait only for the replacement in memory.
    changing: Mutex<()>,
}

impl<T: Clone + Serialize + DeserializeOwned> Records<T> {
    /// Reads the file `stored`: its name, kind and version. The server also starts if the file
    /// can't be read. Requests that need it then fail, and the file stays unchanged.
    pub(crate) fn open(dir: Arc<dyn Dir>, stored: (&'static str, &'static str, u32)) -> Records<T> {
        let (name, kind, version) = stored;
        let file = DurableFile::new(dir, name, kind, version);
        let read = file
            .load()
            .and_then(|content| content.map_or_else(|| Ok(Vec::new()), |bytes| decode(name, &bytes)));
        if let Err(error) = &read {
            tracing::error!(%error, "a file with access data of the admin API can't be used");
        }
        Records { file, state: RwLock::new(read.map(Arc::new)), changing: Mutex::new(()) }
    }

    /// Checks the content of the file.
    pub(crate) fn verify(stored: (&'static str, &'static str, u32), content: &[u8]) -> Result<()> {
        decode::<T>(stored.0, content).map(drop)
    }

    /// Returns all records.
    pub(crate) fn all(&self) -> Result<Arc<Vec<T>>> {
        self.state.read().clone()
    }

    /// Changes the records. When this returns, the change survives a power loss.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Vec<T>) -> Result<()>) -> Result<()> {
        let _changing = self.changing.lock();
        let mut next: Vec<T> = self.all()?.to_vec();
        change(&mut next)?;
        let content = serde_json::to_vec_pretty(&next)
            .map_err(|e| Error::with_source(ErrorKind::Invalid, "write access data", e))?;
        self.file.save(&content)?;
        *self.state.write() = Ok(Arc::new(next));
        Ok(())
    }
}

fn decode<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<Vec<T>> {
    serde_json::from_slice(bytes).map_err(|e| Error::new(ErrorKind::Corrupt, format!("read {name}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::MemDir;

    const STORED: (&str, &str, u32) = ("r.json", "records", 1);

    #[test]
    fn what_is_damaged_is_refused_and_kept() {
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let records = Records::<u32>::open(dir.clone(), STORED);
        let add = |all: &mut Vec<u32>| {
            all.push(7);
            Ok(())
        };
        records.update(add).unwrap();
        assert_eq!(*Records::<u32>::open(dir.clone(), STORED).all().unwrap(), [7]);
        DurableFile::new(dir.clone(), "r.json", "records", 1).save(b"[-1]").unwrap();
        let records = Records::<u32>::open(dir.clone(), STORED);
        assert_eq!(records.all().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(records.update(|_| Ok(())).unwrap_err().kind(), ErrorKind::Corrupt);
        let content = DurableFile::new(dir, "r.json", "records", 1).load().unwrap().unwrap();
        assert_eq!(content, b"[-1]");
    }
}
