//! Health: whether the pool can be trusted, and what needs the operator's attention.
//!
//! A warning has a code and a sentence. Codes never change their meaning, so alerts may rely on
//! them. Each code has its cause and its cure in docs/OPERATIONS.md, which a test compares with
//! this list.

use super::Pool;
use crate::branch::Branch;
use crate::error::ErrorKind;
use crate::health::{Health, Warning, code};
use crate::info::layout::{IncomingInfo, RebuildProgress};
use crate::journal::SegmentFile;
use crate::shortage::Task;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Describes how far a rebuild has come, as the end of a sentence.
fn describe(progress: RebuildProgress) -> String {
    let RebuildProgress { copied, left, seconds } = progress;
    let percent = u128::from(copied) * 100 / (u128::from(copied) + u128::from(left)).max(1);
    let time = match seconds {
        None => String::new(),
        Some(seconds) if seconds < 90 => format!(", which take about {seconds} s"),
        Some(seconds) if seconds < 90 * 60 => format!(", which take about {} min", seconds.div_ceil(60)),
        Some(seconds) => format!(", which take about {} h", seconds.div_ceil(3600)),
    };
    format!(", {percent} % is done; {left} bytes are left{time}")
}

impl Pool {
    /// Returns whether the pool can be trusted, and the warnings for the operator.
    pub fn health(&self) -> Health {
        if let Some(reason) = self.core.fault.reason() {
            return Health::Poisoned(reason);
        }
        let mut warnings = Vec::new();
        self.warn_of_damage(&mut warnings);
        self.warn_of_lost_data(&mut warnings);
        self.warn_of_members(&mut warnings);
        self.warn_of_space(&mut warnings);
        self.warn_of_stalled_work(&mut warnings);
        self.warn_of_clock(&mut warnings);
        let problems = self.core.stamping.problems().into_iter();
        warnings.extend(problems.map(|text| Warning::new(code::PV_STAMP, text)));
        self.warn_of_shortages(&mut warnings);
        self.warn_of_history_room(&mut warnings);
        self.warn_of_large_blocks(&mut warnings);
        self.warn_of_overwriting(&mut warnings);
        if warnings.is_empty() { Health::Healthy } else { Health::Warning(warnings) }
    }

    fn warn_of_damage(&self, warnings: &mut Vec<Warning>) {
        let damages = self.core.fault.damages();
        let blocks = self.core.catalog.damaged_blocks();
        if let Some(first) = blocks.first() {
            let text = format!(
                "{} blocks of the catalog do not verify, the first is block {first}; run `hindcast check`",
                blocks.len()
            );
            warnings.push(Warning::new(code::CATALOG_DAMAGED, text));
        }
        warnings.extend(damages.into_iter().map(|text| Warning::new(code::CATALOG_DAMAGED, text)));
        warnings.extend(self.journal_loss().map(|loss| Warning::new(code::JOURNAL_LOSS, loss.to_string())));
    }

    fn warn_of_lost_data(&self, warnings: &mut Vec<Warning>) {
        let (bytes, places) = self.core.damage.totals();
        if bytes > 0 {
            let text = format!(
                "{bytes} bytes in {places} places can't be read any more; `hindcast volume show` lists those of a volume"
            );
            warnings.push(Warning::new(code::DATA_DAMAGED, text));
        }
        for pv in self.pvs().into_iter().filter(|pv| pv.read_errors > 0) {
            let text = format!(
                "{} reads of {} have failed since the start, the last {}",
                pv.read_errors, pv.path, pv.last_read_error
            );
            warnings.push(Warning::new(code::PV_READ_ERRORS, text).of(pv.path));
        }
        for (path, failure) in self.pvs().into_iter().filter_map(|pv| Some((pv.path, pv.failure?))) {
            let text = format!(
                "physical volume {path} has failed: the server writes no more data to it, still reads its data, and writes new \
                 content to the others: {failure}"
            );
            warnings.push(Warning::new(code::PV_FAILED, text).of(path));
        }
    }

    fn warn_of_members(&self, warnings: &mut Vec<Warning>) {
        for pv in self.pvs() {
            let Some(layout) = pv.layout else { continue };
            for member in layout.members.iter().filter(|member| !member.is_in) {
                let survives = match layout.survives {
                    0 => "no further failure of a member is survived".to_owned(),
                    1 => "one further failure of a member is survived".to_owned(),
                    n => format!("{n} further failures of members are survived"),
                };
                let next = match &member.incoming {
                    Some(IncomingInfo { path, progress }) => {
                        format!("it is rebuilt onto {path}{}", progress.map(describe).unwrap_or_default())
                    }
                    None if self.core.spares.is_any_fitting(member.size)
                        && self.core.options.spare_after.is_some() =>
                    {
                        "a spare disk takes its place soon".to_owned()
                    }
                    None if member.content == 0 => {
                        format!(
                            "the others have taken over what it had; replace it (`pool replace {} NEW`)",
                            member.path
                        )
                    }
                    None if layout.takes_over => "the others take over what it had".to_owned(),
                    None => {
                        format!("`hindcast pool replace {} NEW` or `pool online` rebuilds it", member.path)
                    }
                };
                let text = format!(
                    "member {} of {} is out ({}); {survives}; {next}",
                    member.path, pv.path, member.reason
                );
                warnings.push(Warning::new(code::LAYOUT_DEGRADED, text).of(&member.path));
            }
        }
        for spare in self.spares().into_iter().filter(|spare| !spare.problem.is_empty()) {
            let text = format!(
                "spare disk {} can't be used: {}; `hindcast pool remove {}` forgets it",
                spare.path, spare.problem, spare.path
            );
            warnings.push(Warning::new(code::SPARE_MISSING, text).of(spare.path));
        }
    }

    fn warn_of_large_blocks(&self, warnings: &mut Vec<Warning>) {
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        let unit = self.core.config.atomic_unit;
        for pv in ids.into_iter().filter_map(|id| self.core.pvs.held(id)) {
            if let Some(whole) = pv.physical_block.filter(|whole| *whole > u64::from(unit)) {
                let text = format!(
                    "the disk of {} writes {whole} bytes as a whole, more than the pool's atomic unit of {unit}: a power failure \
                     could damage data beside a write",
                    pv.path
                );
                warnings.push(Warning::new(code::BLOCKS_LARGE, text).of(&pv.path));
            }
        }
    }

    fn warn_of_overwriting(&self, warnings: &mut Vec<Warning>) {
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        let pvs = ids.into_iter().filter_map(|id| self.core.pvs.held(id));
        let pvs = pvs.filter(|pv| pv.overwrites_elsewhere).map(|pv| pv.path.clone());
        let elsewhere = |file: &SegmentFile| file.disk.overwrites_elsewhere().unwrap_or(false);
        let journal = self.core.journal.file(0).filter(|file| elsewhere(file));
        for what in pvs.chain(journal.map(|_| "the journal".to_owned())) {
            let text = format!(
                "the file system of {what} writes overwritten data to new places: no space is reserved for that"
            );
            warnings.push(Warning::new(code::SPACE_NOT_RESERVED, text));
        }
    }

    /// Returns whether the room for histories is low, and volumes need it.
    pub fn lacks_history_room(&self) -> bool {
        self.low_history_room().is_some()
    }

    /// Returns the room for histories and the bytes that they take, if the room is low and volumes
    /// need it.
    fn low_history_room(&self) -> Option<(u64, u64)> {
        let branches: Vec<Arc<Branch>> = {
            let names = self.core.names.read();
            let is_kept = names.by_name.values().any(|volume| volume.line.branch.cdp.is_on());
            is_kept.then(|| names.branches.values().cloned().collect())?
        };
        let stored = branches.iter().map(|branch| branch.cdp.log.read().stored()).sum::<u64>();
        let room = self.core.space.log_room();
        let share = u128::from(self.core.options.low_space_percent);
        let low = room == 0 || u128::from(room) * 100 < share * (u128::from(room) + u128::from(stored));
        low.then_some((room, stored))
    }

    fn warn_of_history_room(&self, warnings: &mut Vec<Warning>) {
        let Some((room, stored)) = self.low_history_room() else { return };
        if self.core.positions.history_refused.load(Ordering::Relaxed) {
            let text = format!(
                "writes to volumes with a history are refused: the data directory's file system has {room} bytes left for \
                 histories, which take {stored}"
            );
            warnings.push(Warning::new(code::HISTORY_ROOM_REFUSING, text));
        } else {
            let share = self.core.options.low_space_percent;
            let text = format!(
                "room for histories is low: {room} bytes in the data directory's file system, beside {stored} taken \
                 (less than {share} %)"
            );
            warnings.push(Warning::new(code::HISTORY_ROOM_LOW, text));
        }
    }

    fn warn_of_shortages(&self, warnings: &mut Vec<Warning>) {
        let (held, missing) = self.core.catalog.ballast();
        if missing > 0 {
            let text = format!(
                "the data directory's file system is full: {held} of the {} bytes in reserve for the catalog are left",
                held + missing
            );
            warnings.push(Warning::new(code::BALLAST_USED, text));
        }
        for (task, what) in [
            (Task::Destage, "acknowledged writes stay in the journal"),
            (Task::Upkeep, "space is not freed"),
            (Task::Sort, "histories stay in shared segments"),
        ] {
            let Some(cause) = self.core.shortages.cause(task) else { continue };
            let (code, until) = match cause.kind() {
                _ if cause.is_pv_away() => (code::PV_AWAY, "a physical volume answers"),
                ErrorKind::NoSpace => (code::HOST_FULL_WAITING, "a shortage ends"),
                _ => (code::RESOURCES_SHORT, "a shortage ends"),
            };
            warnings.push(Warning::new(code, format!("{what} until {until}: {cause}")));
        }
    }

    fn warn_of_space(&self, warnings: &mut Vec<Warning>) {
        let without = self.core.areas_without_space();
        for area in self.core.space.areas() {
            let totals = self.core.totals_of(area);
            let pv = area.dedicated().and_then(|pv| self.core.pvs.held(pv));
            if without.contains(&area) {
                let on = pv.as_ref().map(|pv| format!(" on {}, which is dedicated", pv.path));
                let text = format!(
                    "space is low{}: {} of {} bytes are available (less than {} %)",
                    on.unwrap_or_default(),
                    totals.available,
                    totals.capacity,
                    self.core.options.low_space_percent
                );
                let low = Warning::new(code::SPACE_LOW, text);
                warnings.push(match &pv {
                    Some(pv) => low.of(&pv.path),
                    None => low,
                });
            }
            if self.core.is_low_on_space(area) && totals.available < totals.own {
                let what = pv.as_ref().map_or("the pool", |pv| &pv.path);
                let text = format!(
                    "the file system below {what} is full: {what} has {} bytes free, of which {} can be used",
                    totals.own, totals.available
                );
                warnings.push(Warning::new(code::HOST_FULL, text));
            }
        }
        for (volume, used) in self.low_on_epochs() {
            let text = format!(
                "volume {volume} has used {used} epochs; at {} it gets a new branch",
                self.core.options.renew_at_epoch
            );
            warnings.push(Warning::new(code::EPOCHS_LOW, text).of(volume));
        }
        for (volume, taken, reserve) in self.over_reserve() {
            let text =
                format!("the snapshots of {volume} take {taken} bytes, more than the {reserve} reserved");
            warnings.push(Warning::new(code::RESERVE_EXCEEDED, text).of(volume));
        }
    }

    fn warn_of_stalled_work(&self, warnings: &mut Vec<Warning>) {
        if self.core.positions.drain_stalled.load(Ordering::Relaxed) {
            let text = "draining a physical volume waits: the others have no space for its data, or it does not answer";
            warnings.push(Warning::new(code::DRAIN_STALLED, text));
        }
        if let Some(why) = self.core.positions.completion_stalled.lock().as_ref() {
            let text = format!("flattening a volume waits; the server tries again every second: {why}");
            warnings.push(Warning::new(code::COMPLETION_STALLED, text));
        }
    }
}
