//! The stored clock of the pool: two rows of the table `meta`.

use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Catalog, META, Txn};
use crate::clock::{ClockRecord, ClockStretch};
use crate::error::Result;

const CLOCK: &str = "clock";
const STRETCHES: &str = "clock_stretches";
/// The largest number of stretches of one row, by its format.
const MAX_STRETCHES: usize = 4096;

/// The stretches of pool time, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StretchesRecord(pub(crate) Vec<ClockStretch>);

impl Value for ClockRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.time).u64(self.monotonic).uuid(&self.boot).u64(self.agreed.cast_unsigned());
            w.u64(self.slack).u64(self.settled_at);
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = ClockRecord {
            time: r.u64()?,
            monotonic: r.u64()?,
            boot: r.uuid()?,
            agreed: r.u64::<u64>()?.cast_signed(),
            slack: r.u64()?,
            settled_at: r.u64()?,
        };
        r.end(value)
    }
}

impl Value for StretchesRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u16(self.0.len() as u16);
            for stretch in &self.0 {
                w.u64(stretch.from).u64(stretch.lsn).u64(stretch.offset.cast_unsigned());
            }
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let count = usize::from(r.u16()?);
        let mut stretches: Vec<ClockStretch> = Vec::with_capacity(count);
        for _ in 0..count {
            let (from, lsn) = (r.u64()?, r.u64()?);
            stretches.push(ClockStretch { from, lsn, offset: r.u64::<u64>()?.cast_signed() });
        }
        let grow = stretches.is_sorted_by(|a, b| a.from < b.from);
        r.end(StretchesRecord(stretches)).filter(|_| grow && (1..=MAX_STRETCHES).contains(&count))
    }
}

impl Catalog {
    /// Returns the clocks and the stretches as they were stored last. A row that is missing or
    /// damaged counts as absent. The pool then treats the wall clock as it does after a boot.
    pub(crate) fn clock(&self) -> Result<(Option<ClockRecord>, Vec<ClockStretch>)> {
        self.store.read("read the clock", |txn| {
            let table = db!("read the clock", txn.open_table(META));
            let clock = db!("read the clock", table.get(CLOCK));
            let clock = clock.and_then(|row| ClockRecord::decode(row.value()));
            let stretches = db!("read the clock", table.get(STRETCHES));
            let stretches = stretches.and_then(|row| StretchesRecord::decode(row.value()));
            Ok((clock, stretches.map(|record| record.0).unwrap_or_default()))
        })
    }
}

impl Txn<'_> {
    pub(crate) fn put_clock(
        &mut self,
        record: &ClockRecord,
        stretches: Option<&[ClockStretch]>,
    ) -> Result<()> {
        self.put(META, CLOCK, &record.encode())?;
        match stretches {
            Some(stretches) => self.put(META, STRETCHES, &StretchesRecord(stretches.to_vec()).encode()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lsn;
    use uuid::Uuid;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_bytes() {
        let clock = ClockRecord {
            time: 1,
            monotonic: 2,
            boot: Uuid::from_bytes([3; 16]),
            agreed: -4,
            slack: 5,
            settled_at: 6,
        };
        assert_eq!(
            hex(&clock.encode()),
            "010100000000000000020000000000000003030303030303030303030303030303fcffffffffffffff05000000000000000600000000000000d7f2a3b7"
        );
        assert_eq!(ClockRecord::decode(&clock.encode()), Some(clock));
        let stretch = |from, offset| ClockStretch { from, lsn: Lsn(from + 1), offset };
        let stretches = StretchesRecord(vec![stretch(0, 0), stretch(7, -8)]);
        assert_eq!(
            hex(&stretches.encode()),
            "01020000000000000000000100000000000000000000000000000007000000000000000800000000000000f8ffffffffffffff505bca6e"
        );
        assert_eq!(StretchesRecord::decode(&stretches.encode()), Some(stretches));
        for wrong in [vec![], vec![stretch(7, 0), stretch(7, 1)], vec![stretch(7, 0), stretch(6, 1)]] {
            assert_eq!(StretchesRecord::decode(&StretchesRecord(wrong).encode()), None);
        }
    }
}
