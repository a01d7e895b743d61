//! Pictures of a trace.

use super::file::{Chosen, Loaded};
use crate::failure::Failure;
use crate::output::harmless;
use hindcast_api::Size;
use hindcast_engine::disk::{AccessOp, Cause, DiskAccess, TraceDisk};
use hindcast_plot::{AccessField, Density, Kind, SeekField, Span, Spot, grouped};

/// Number of slices that a picture of densities has at most.
const MOST_SLICES: u64 = 100_000;
/// Number of slices of a disk, if the command names no size.
const SLICES: u64 = 512;
/// Smallest size in bytes of a slice, if the command names none.
const LEAST_SLICE: u64 = 1 << 20;
const MIB: f64 = (1 << 20) as f64;

/// The colours of causes. Neighbours in a picture are easy to tell apart.
fn kind(cause: Cause) -> Kind<'static> {
    let colour = match cause {
        Cause::Read => "#0072b2",
        Cause::Reference => "#e69f00",
        Cause::Preserve => "#d55e00",
        Cause::Fill => "#cc79a7",
        Cause::NewSlot => "#009e73",
        Cause::Apply => "#56b4e9",
        Cause::History => "#7b3294",
        Cause::Move => "#8c564b",
        Cause::Rebuild => "#a6a000",
        Cause::Scrub => "#555555",
        Cause::Repair => "#e7298a",
        Cause::Open => "#000000",
        Cause::Other => "#b0b0b0",
    };
    Kind { name: cause.name(), colour }
}

/// What is to be drawn.
pub(super) struct Look<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) chosen: &'a Chosen<'a>,
}

impl Look<'_> {
    fn notes(&self) -> Vec<String> {
        let Loaded { head, lost, end, .. } = self.loaded;
        let started = jiff::Timestamp::from_nanosecond(head.started.into()).unwrap_or_default();
        let cut = if end.is_none() { "; the file was cut off" } else { "" };
        let mut notes = vec![format!("pool {}, from {started}{cut}", head.pool)];
        if *lost > 0 {
            let lost = grouped(*lost as f64);
            notes.push(format!("{lost} accesses are missing, because they came too fast"));
        }
        notes
    }

    fn wanted(&self, disk: &TraceDisk) -> impl Iterator<Item = &DiskAccess> {
        self.loaded.of_disk(disk.number).filter(|access| self.chosen.wants(access))
    }

    /// Draws the places of reads and writes over time, and when syncs ran.
    pub(super) fn accesses(&self) -> String {
        let seconds = |at: u64| at as f64 / 1e9;
        let mut fields = Vec::new();
        for disk in self.loaded.disks.values() {
            let highest = self.wanted(disk).map(end).max().unwrap_or(0);
            let (unit, unit_name) = place_unit(highest);
            let is_sync = |access: &&DiskAccess| access.op == AccessOp::Sync;
            let span = |access: &DiskAccess| Span {
                from: seconds(access.at),
                to: seconds(access.at) + f64::from(access.micros) / 1e6,
                kind: access.cause as usize,
            };
            let syncs: Vec<Span> = self.wanted(disk).filter(is_sync).map(span).collect();
            let mut of_disk: Vec<AccessField> = Vec::new();
            for (op, name) in [(AccessOp::Read, "reads"), (AccessOp::Write, "writes")] {
                let spot = |access: &DiskAccess| Spot {
                    x: seconds(access.at),
                    y: access.offset as f64 / unit,
                    kind: access.cause as usize,
                };
                let spots: Vec<Spot> = self.wanted(disk).filter(|access| access.op == op).map(spot).collect();
                if !spots.is_empty() {
                    let count = grouped(spots.len() as f64);
                    let heading = format!("{}: {count} {name}", harmless(&disk.path));
                    let y_label = format!("place in {unit_name}");
                    of_disk.push(AccessField { heading, y_label, spots, strip: None });
                }
            }
            if let Some(last) = of_disk.last_mut().filter(|_| !syncs.is_empty()) {
                last.strip = Some(("syncs".into(), syncs));
            }
            fields.extend(of_disk);
        }
        hindcast_plot::accesses(
            "Accesses by time and place",
            &self.notes(),
            "time in seconds",
            &Cause::ALL.map(kind),
            &fields,
        )
    }

    /// Draws how far each access is from the one before it, and how long it took.
    pub(super) fn seeks(&self) -> String {
        let mut fields = Vec::new();
        for disk in self.loaded.disks.values() {
            let mut last_end = None;
            let mut spots = Vec::new();
            for access in self.loaded.of_disk(disk.number).filter(|access| moves(access)) {
                let from = last_end.replace(end(access));
                if let Some(from) = from.filter(|_| self.chosen.wants(access)) {
                    spots.push(Spot {
                        x: access.offset.abs_diff(from) as f64,
                        y: f64::from(access.micros) / 1e3,
                        kind: access.cause as usize,
                    });
                }
            }
            if !spots.is_empty() {
                let follow = spots.iter().filter(|spot| spot.x == 0.0).count() as f64;
                let share = 100.0 * follow / spots.len() as f64;
                let heading = format!(
                    "{}: {} accesses, {share:.0} % follow the one before",
                    harmless(&disk.path),
                    grouped(spots.len() as f64)
                );
                fields.push(SeekField { heading, spots });
            }
        }
        hindcast_plot::seeks("Distances between accesses", &self.notes(), &Cause::ALL.map(kind), &fields)
    }

    /// Draws how much of each slice was read and written.
    pub(super) fn densities(&self, slice: Option<u64>) -> Result<String, Failure> {
        let mut all = Vec::new();
        for disk in self.loaded.disks.values() {
            let size = self.wanted(disk).map(end).max().unwrap_or(0).max(disk.size);
            let slice = slice.unwrap_or_else(|| size.div_ceil(SLICES).next_power_of_two().max(LEAST_SLICE));
            let count = size.checked_div(slice).map(|whole| whole + u64::from(!size.is_multiple_of(slice)));
            let count = count.filter(|count| *count <= MOST_SLICES).ok_or_else(|| {
                Failure::usage(format!("--slice {}: a disk has at most {MOST_SLICES} slices", Size(slice)))
            })?;
            let mut slices = vec![[0.0; 2]; usize::try_from(count).unwrap_or(0)];
            for access in self.wanted(disk) {
                let of_op = match access.op {
                    AccessOp::Read => 0,
                    AccessOp::Write => 1,
                    AccessOp::Sync | AccessOp::Punch => continue,
                };
                let mut at = access.offset;
                while at < end(access) {
                    let next = ((at / slice + 1) * slice).min(end(access));
                    if let Some(amounts) = slices.get_mut((at / slice) as usize) {
                        amounts[of_op] += (next - at) as f64 / MIB;
                    }
                    at = next;
                }
            }
            if slices.iter().flatten().any(|amount| *amount > 0.0) {
                all.push(Density {
                    heading: harmless(&disk.path),
                    x_label: format!("slices of {}, in order", Size(slice)),
                    y_label: "MiB".into(),
                    slices,
                });
            }
        }
        Ok(hindcast_plot::densities("Accesses by part of the disk", &self.notes(), &all))
    }
}

/// Returns whether an access moves the head of a disk.
fn moves(access: &DiskAccess) -> bool {
    matches!(access.op, AccessOp::Read | AccessOp::Write) && !access.cached
}

/// Returns the byte of the disk behind an access.
fn end(access: &DiskAccess) -> u64 {
    access.offset.saturating_add(access.len.into())
}

/// Returns a unit in which places up to `highest` are readable numbers, and its name.
fn place_unit(highest: u64) -> (f64, &'static str) {
    match highest {
        0..0x10_0000 => (1024.0, "KiB"),
        0x10_0000..0x1_0000_0000 => (MIB, "MiB"),
        _ => (MIB * 1024.0, "GiB"),
    }
}
