//! Harm to the journal files of a pool that was closed or killed: a file is cut short, removed or
//! unreadable, or bits are flipped in a part that is in place.
//!
//! If something that the pool needs is missing, the pool stays closed unless the loss is accepted.
//! If it is accepted, the pool holds a prefix of what was acknowledged, and the run continues.

use crate::generate::Generator;
use crate::oracle::Promise;
use crate::run::{Outcome, Run};
use crate::workload::{Crash, Op};
use hindcast_engine::ErrorKind;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::disk::{Dir, OpenMode, SyncPurpose};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, PoolOptions};

const BLOCK: u64 = 4096;
/// Fewer operations than this are drawn between the moment at which everything is in place and the
/// end of the process.
const MOST_OPS: u64 = 12;

/// The harm to one journal file.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// The file is cut to this many bytes.
    Cut(u64),
    Removed,
    /// (first byte, number of blocks): these blocks can't be read until the pool is open.
    Unreadable(u64, u64),
    /// Bits of the block at this byte are flipped. All records of the journal are in place.
    Flipped(u64),
}

impl Run {
    /// Continues for a little, ends the process, harms a journal file, and checks what happens to
    /// the pool.
    pub(crate) fn harm_journal(&mut self, generator: &mut Generator) -> Outcome<()> {
        self.dir.crash_at(None);
        for op in [Op::ClearFaults, Op::Reopen(None), Op::Drain] {
            self.step(&op)?;
        }
        self.oracle.all_durable();
        let (clean, flipped) = (self.rand.percent(50), self.rand.percent(25));
        self.oracle.keep_all(true);
        for _ in 0..self.rand.below(MOST_OPS) {
            let state = self.oracle.state();
            let op = generator.next(state, &self.transfers());
            let simple = matches!(
                op,
                Op::Write { .. }
                    | Op::Discard { .. }
                    | Op::Zeroes { .. }
                    | Op::Flush(_)
                    | Op::Snapshot(_)
                    | Op::Maintain(_)
            );
            if simple {
                self.step(&op)?;
            }
        }
        if flipped {
            self.step(&Op::Drain)?;
        }
        if clean {
            self.close()?;
        } else {
            self.planned = Some(Crash::Kill);
            self.end_process();
        }
        let result = self.do_harm(flipped);
        self.oracle.keep_all(false);
        result?;
        self.finish()
    }

    fn do_harm(&mut self, flipped: bool) -> Outcome<()> {
        let files: Vec<String> = self
            .dir
            .files()
            .into_iter()
            .map(|(name, _)| name)
            .filter(|n| n.starts_with("journal-0"))
            .collect();
        let Some(name) = files.get(self.rand.below(files.len() as u64) as usize).cloned() else {
            return self.open(Promise::Acknowledged);
        };
        let size = self.plan.config.segment_size;
        // Most of the content of a file is at its beginning.
        let block = self.rand.pick(&[1, 4, 16, size / BLOCK]).min(size / BLOCK);
        let at = self.rand.below(block) * BLOCK;
        let harm = match self.rand.below(5) {
            _ if flipped => Harm::Flipped(at),
            0 => Harm::Removed,
            1 | 2 => Harm::Cut(at + self.rand.pick(&[0, 1, 100, BLOCK - 1])),
            _ => Harm::Unreadable(at, self.rand.pick(&[1, 1, 2, 20])),
        };
        self.say(|| format!("harm to {name}: {harm:?}"));
        self.inflict(&name, harm)?;
        let report = check(self.dyn_dir(), &CheckOptions::default(), &mut |_, _| {});
        let noticed =
            report.map_err(|e| format!("check: {e:?}"))?.findings.iter().any(|f| f.code == "journal");
        let opened = Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone());
        match (opened, harm) {
            (Ok(_), Harm::Cut(_) | Harm::Removed) => {
                Err(format!("{name} was harmed ({harm:?}), and the pool opens"))
            }
            (Err(e), Harm::Flipped(_)) => {
                Err(format!("damage of what is in place keeps the pool closed: {e:?}"))
            }
            (Ok(pool), _) if !noticed => {
                self.pool = Some(pool);
                self.recovered(Promise::Acknowledged)
            }
            (Err(e), _) if noticed && e.kind() == ErrorKind::Corrupt => self.accept_loss(),
            (opened, _) => Err(format!("check notices: {noticed}; open: {:?}", opened.map(drop))),
        }
    }

    fn inflict(&mut self, name: &str, harm: Harm) -> Outcome<()> {
        let fail = |e: std::io::Error| format!("do harm to {name}: {e}");
        match harm {
            Harm::Cut(len) => {
                let disk = self.dir.open(name, OpenMode::Existing).map_err(fail)?;
                disk.set_len(len).and_then(|()| disk.sync(SyncPurpose::Journal)).map_err(fail)?;
            }
            Harm::Removed => {
                self.dir.remove(name).and_then(|()| self.dir.sync(SyncPurpose::Dir)).map_err(fail)?;
            }
            Harm::Unreadable(at, blocks) => self.dir.fail_reads(name, at..at + blocks * BLOCK),
            Harm::Flipped(at) => {
                for _ in 0..20 {
                    let bit = self.rand.below(8) as u8;
                    self.dir.flip_bit(name, at + self.rand.below(BLOCK), bit);
                }
            }
        }
        Ok(())
    }

    fn accept_loss(&mut self) -> Outcome<()> {
        let options = PoolOptions { accept_journal_loss: true, ..self.plan.options.clone() };
        let pool = Pool::open(self.dyn_dir(), self.world(), options)
            .map_err(|e| format!("open although a part of the journal is lost: {e:?}"))?;
        self.say(|| format!("accepted: {:?}", pool.journal_loss()));
        if pool.journal_loss().is_none() {
            return Err("the loss is not told".into());
        }
        self.pool = Some(pool);
        self.recovered(Promise::Durable)
    }

    fn recovered(&mut self, promise: Promise) -> Outcome<()> {
        self.dir.clear_faults();
        let first_lost = self.compare(promise)?;
        self.forget_lost_moments(first_lost.map(Lsn))?;
        self.note_moments()
    }
}
