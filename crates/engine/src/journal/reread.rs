//! Reading the data of a record again, by its place.

use super::Journal;
use super::record::verifies;
use crate::error::{Error, Result, corrupt};
use crate::staging::StagedRecord;
use std::sync::Arc;

impl Journal {
    /// Reads the data of a record that has data, and verifies it. The caller ensures that the
    /// record's segment is not used again meanwhile.
    pub(crate) fn read_again(&self, record: &StagedRecord) -> Result<Arc<[u8]>> {
        let (lsn, file) = (record.stamp.lsn, record.file);
        let Some(segment) = self.file(file.into()) else {
            return Err(corrupt(format!("read LSN {lsn}: journal file {file} is missing")));
        };
        let mut data = vec![0; record.data_len as usize];
        let read = segment.disk.read_at(&mut data, record.at.into());
        read.map_err(|e| Error::io(format!("read LSN {lsn} from journal file {file}"), e))?;
        if !verifies(record.version, record.offset, &data, record.sum) {
            return Err(corrupt(format!("verify LSN {lsn}: its data in journal file {file} is damaged")));
        }
        Ok(data.into())
    }
}
