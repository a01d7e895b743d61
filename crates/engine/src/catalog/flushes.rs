//! Flush points of volumes that keep their history. A row has the points that one commit stored.

use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Bytes, Catalog, Txn, decode};
use crate::codec::{Reader, Writer};
use crate::error::Result;
use crate::ids::{Lsn, Stamp, VolumeId};
use redb::TableDefinition;

/// Rows of flush points, by (volume, LSN of the last point).
pub(super) const FLUSHES: TableDefinition<'static, (VolumeId, Lsn), Bytes> =
    TableDefinition::new("cdp_flushes");

/// The largest number of points of one row. A search reads some rows as a whole.
const MAX_POINTS: usize = 1024;

/// Flush points in the order of LSNs. No point is later in time than the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlushRecord(pub(crate) Vec<Stamp>);

impl Value for FlushRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u16(self.0.len() as u16);
            let mut last = Stamp::default();
            for point in &self.0 {
                put_number(w, point.lsn.0.wrapping_sub(last.lsn.0));
                put_number(w, point.time.wrapping_sub(last.time));
                last = *point;
            }
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let count = r.u16()?;
        let mut last = Stamp::default();
        let mut points = Vec::with_capacity(count.into());
        for _ in 0..count {
            let lsn = Lsn(last.lsn.0.checked_add(take_number(&mut r)?)?);
            last = Stamp { lsn, time: last.time.checked_add(take_number(&mut r)?)? };
            points.push(last);
        }
        r.end(FlushRecord(points)).filter(|record| !record.0.is_empty())
    }
}

/// Appends a number with seven bits a byte, low ones first. The high bit is set in all bytes but
/// the last.
fn put_number(w: &mut Writer, mut number: u64) {
    while number >= 128 {
        w.u8(number as u8 | 128);
        number >>= 7;
    }
    w.u8(number as u8);
}

fn take_number(r: &mut Reader<'_>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        let part = u64::from(byte & 127);
        number |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if byte < 128 {
            return Some(number);
        }
    }
    None
}

impl Catalog {
    /// Returns the volumes that have flush points. For each it returns the key of the volume's
    /// oldest row, and its newest point. If the newest row is damaged, only the LSN of the point is
    /// known.
    pub(crate) fn flushed_volumes(&self) -> Result<Vec<(VolumeId, Lsn, Stamp)>> {
        self.store.read("read the flush points", |txn| {
            let table = db!("read the flush points", txn.open_table(FLUSHES));
            let mut found = Vec::new();
            let mut from = (VolumeId(0), Lsn::ZERO);
            while let Some(row) = db!("read the flush points", table.range(from..)).next() {
                let (volume, oldest) = db!("read the flush points", row).0.value();
                let newest = db!("read the flush points", table.range((volume, oldest)..=(volume, Lsn::MAX)))
                    .next_back();
                let newest = match newest {
                    Some(row) => {
                        let (key, value) = db!("read the flush points", row);
                        let points = FlushRecord::decode(value.value()).map(|record| record.0);
                        points
                            .and_then(|points| points.last().copied())
                            .unwrap_or(Stamp::new(key.value().1, 0))
                    }
                    None => Stamp::new(oldest, 0),
                };
                found.push((volume, oldest, newest));
                let Some(next) = volume.0.checked_add(1) else { break };
                from = (VolumeId(next), Lsn::ZERO);
            }
            Ok(found)
        })
    }

    /// Returns the last flush point of a volume that `reaches` accepts. `reaches` accepts all
    /// points up to one of them, and none behind it.
    pub(crate) fn last_flush(
        &self,
        volume: VolumeId,
        reaches: impl Fn(&Stamp) -> bool,
    ) -> Result<Option<Stamp>> {
        self.store.read("read the flush points", |txn| {
            let table = db!("read the flush points", txn.open_table(FLUSHES));
            let row_from = |lsn: Lsn| {
                let row =
                    db!("read the flush points", table.range((volume, lsn)..=(volume, Lsn::MAX))).next();
                let Some(row) = row else { return Ok(None) };
                let (key, value) = db!("read the flush points", row);
                Ok(Some((key.value().1, decode::<FlushRecord>("flush points", value.value())?.0)))
            };
            // The row with the last such point is the last of those that begin with one.
            let (mut low, mut high) = (0, u64::MAX);
            let mut best = None;
            while low <= high {
                let middle = low + (high - low) / 2;
                match row_from(Lsn(middle))? {
                    Some((key, points)) if reaches(&points[0]) => {
                        best = points.into_iter().take_while(&reaches).last();
                        let Some(next) = key.0.checked_add(1) else { break };
                        low = next;
                    }
                    _ => {
                        let Some(before) = middle.checked_sub(1) else { break };
                        high = before;
                    }
                }
            }
            Ok(best)
        })
    }

    /// Returns the newest flush points of a volume up to an LSN, oldest first, at most `most` of
    /// them.
    pub(crate) fn newest_flushes(&self, volume: VolumeId, to: Lsn, most: usize) -> Result<Vec<Stamp>> {
        self.store.read("read the flush points", |txn| {
            let table = db!("read the flush points", txn.open_table(FLUSHES));
            // The key of a row is its last point, so the row that holds `to` may have a later key.
            let row = db!("read the flush points", table.range((volume, to)..=(volume, Lsn::MAX))).next();
            let end = match row {
                Some(row) => db!("read the flush points", row).0.value().1,
                None => Lsn::MAX,
            };
            let mut found: Vec<Stamp> = Vec::new();
            for row in db!("read the flush points", table.range((volume, Lsn::ZERO)..=(volume, end))).rev() {
                if found.len() >= most {
                    break;
                }
                let (_, value) = db!("read the flush points", row);
                let points = decode::<FlushRecord>("flush points", value.value())?.0;
                found.extend(points.iter().rev().filter(|point| point.lsn <= to));
            }
            found.truncate(most);
            found.reverse();
            Ok(found)
        })
    }

    /// Visits all rows in order: volume, key, and the points, unless the row is damaged.
    pub(crate) fn visit_flushes(
        &self,
        mut visit: impl FnMut(VolumeId, Lsn, Option<FlushRecord>),
    ) -> Result<()> {
        self.store.read("read the flush points", |txn| {
            let table = db!("read the flush points", txn.open_table(FLUSHES));
            for row in db!("read the flush points", table.range((VolumeId(0), Lsn::ZERO)..)) {
                let (key, value) = db!("read the flush points", row);
                let (volume, last) = key.value();
                visit(volume, last, FlushRecord::decode(value.value()));
            }
            Ok(())
        })
    }

    /// Returns the keys of a volume's rows before an LSN, oldest first, at most `most`, and the key
    /// that follows them.
    pub(crate) fn flushes_before(
        &self,
        volume: VolumeId,
        lsn: Lsn,
        most: usize,
    ) -> Result<(Vec<Lsn>, Option<Lsn>)> {
        self.store.read("read the flush points", |txn| {
            let table = db!("read the flush points", txn.open_table(FLUSHES));
            let mut found = Vec::new();
            for row in db!("read the flush points", table.range((volume, Lsn::ZERO)..=(volume, Lsn::MAX))) {
                let key = db!("read the flush points", row).0.value().1;
                if key >= lsn || found.len() == most {
                    return Ok((found, Some(key)));
                }
                found.push(key);
            }
            Ok((found, None))
        })
    }
}

impl Txn<'_> {
    /// Adds points that are all newer than the stored ones.
    pub(crate) fn put_flushes(&mut self, volume: VolumeId, points: &[Stamp]) -> Result<()> {
        for row in points.chunks(MAX_POINTS) {
            if let Some(last) = row.last() {
                self.put(FLUSHES, (volume, last.lsn), &FlushRecord(row.to_vec()).encode())?;
            }
        }
        Ok(())
    }

    pub(crate) fn remove_flushes(&mut self, volume: VolumeId, key: Lsn) -> Result<()> {
        self.remove(FLUSHES, (volume, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catalogs of older builds contain these bytes.
    #[test]
    fn golden_bytes() {
        let record = FlushRecord(vec![
            Stamp::new(Lsn(1), 2),
            Stamp::new(Lsn(200), 300),
            Stamp::new(Lsn::MAX, u64::MAX),
        ]);
        let bytes: String = record.encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(&bytes[..bytes.len() - 8], "0103000102c701aa02b7feffffffffffffff01d3fdffffffffffffff01");
        assert_eq!(FlushRecord::decode(&record.encode()), Some(record));
        assert_eq!(FlushRecord::decode(&FlushRecord(Vec::new()).encode()), None);
        let backwards = FlushRecord(vec![Stamp::new(Lsn(2), 2), Stamp::new(Lsn(1), 3)]);
        assert_eq!(FlushRecord::decode(&backwards.encode()), None);
    }
}
