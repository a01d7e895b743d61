//! Tasks: what goes on in the background for an operator, from all parts of the server.

use crate::app::App;
use crate::periodic::Worker;
use crate::progress::{End, Known, Progress};
use crate::task_kinds::{self, Stop};
use hindcast_api::{Task, TaskState};
use hindcast_engine::pool::{IncomingInfo, MemberInfo, PvInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Interval of the looks that notice that a task has ended.
const LOOK: Duration = Duration::from_secs(2);

/// Kinds of tasks whose subject is a volume.
const OF_VOLUMES: [&str; 3] = ["flatten", "relocate", "import"];

impl App {
    /// Returns the tasks that go on, by kind, and then those that have ended lately.
    pub(crate) fn tasks(&self) -> Vec<Task> {
        self.seen_tasks.shown(|| self.known_tasks(), |task| self.how_ended(task), tell_of_end)
    }

    fn known_tasks(&self) -> Vec<Known> {
        let mut known = self.tasks_of_volumes();
        known.extend(self.tasks_of_pvs());
        let rebalance = self.pool.rebalancing();
        if rebalance.running {
            let progress = Progress::Done { done: rebalance.seen_bytes, total: Some(rebalance.used_bytes) };
            known.push(Known::new("rebalance", "pool", progress, None));
        }
        let scrub = self.pool.data_scrub();
        if scrub.running {
            let done = scrub.verified
                + scrub.unknown
                + scrub.adopted
                + scrub.repaired
                + scrub.damaged
                + scrub.unreadable;
            let waits = scrub.paused.then(|| "it is paused".to_owned());
            known.push(Known::new("scrub", "pool", Progress::Done { done, total: Some(scrub.total) }, waits));
        }
        known.extend(self.exports.running().into_iter().map(|(address, done)| {
            Known::new("export", &address, Progress::Done { done, total: None }, None)
        }));
        known.extend(self.tasks_of_the_server());
        known
    }

    /// Returns the work that the server does on its own.
    fn tasks_of_the_server(&self) -> Vec<Known> {
        let mut known = Vec::new();
        if self.pool.is_dissolving() {
            known.push(Known::own("dissolve", "pool", Progress::Unknown, None));
        }
        if let Some(left) = self.pool.freeing() {
            known.push(Known::own("free", "pool", Progress::Left(left), None));
        }
        if let Some(found) = self.pool.recompressing() {
            let waits = "there is no space for both editions of a part of the history".to_owned();
            let waits = found.lacks_room.then_some(waits);
            known.push(Known::own("recompress", "pool", Progress::Left(found.left_bytes), waits));
        }
        known
    }

    /// Returns how a task ended that no request for tasks stopped.
    fn how_ended(&self, task: &Task) -> End {
        let subject = task.subject.as_str();
        match task.kind.as_str() {
            "rebuild" => self.how_rebuilt(subject),
            "take-over" => self.how_taken_over(subject),
            "drain" if self.pool.pvs().iter().any(|pv| pv.path == subject && pv.used > 0) => End::Stopped,
            kind if OF_VOLUMES.contains(&kind) && self.pool.volume(subject).is_err() => End::Stopped,
            _ => End::Done,
        }
    }

    /// Returns how the rebuild onto a disk ended.
    fn how_rebuilt(&self, disk: &str) -> End {
        let members: Vec<MemberInfo> = self
            .pool
            .pvs()
            .into_iter()
            .filter_map(|pv| pv.layout)
            .flat_map(|layout| layout.members)
            .collect();
        if members.iter().any(|member| member.path == disk && member.is_in) {
            return End::Done;
        }
        // The reason of a rebuild that ended names the disk.
        let onto = format!("onto {disk} ");
        match members.into_iter().find(|member| member.reason.contains(&onto)) {
            Some(member) => End::Failed(member.reason),
            None => End::Stopped,
        }
    }

    /// Returns how the others' taking over of what a member had ended.
    fn how_taken_over(&self, member: &str) -> End {
        let pvs = self.pool.pvs();
        let mut members = pvs.iter().filter_map(|pv| pv.layout.as_ref()).flat_map(|layout| &layout.members);
        match members.find(|of| of.path == member) {
            Some(of) if !of.is_in && of.content == 0 => End::Done,
            _ => End::Stopped,
        }
    }

    fn tasks_of_volumes(&self) -> Vec<Known> {
        let mut known = Vec::new();
        for name in self.pool.busy_volumes() {
            // A volume that was deleted meanwhile has no tasks.
            let Ok(volume) = self.pool.volume(&name) else { continue };
            let at = |done| Progress::Done { done, total: Some(volume.size) };
            if let Ok(Some(found)) = self.pool.flattening(&name) {
                known.push(Known::new("flatten", &name, at(found.position), found.stalled));
            }
            if let Ok(Some(found)) = self.pool.relocation(&name) {
                known.push(Known::new("relocate", &name, at(found.position), None));
            }
            if let Some(Ok(Some(found))) = volume.importing.then(|| self.pool.unfinished_import(&name)) {
                let waits = "the stream that fills the volume was interrupted; send it again".to_owned();
                let waits = Some(waits).filter(|_| !found.running);
                known.push(Known::new("import", &name, at(found.position), waits));
            }
        }
        known
    }

    fn tasks_of_pvs(&self) -> Vec<Known> {
        let pvs = self.pool.pvs();
        let draining = |pv: &&PvInfo| pv.draining && pv.used > 0;
        let drain = |pv: &PvInfo| Known::new("drain", &pv.path, Progress::Left(pv.used), pv.failure.clone());
        let mut known: Vec<Known> = pvs.iter().filter(draining).map(drain).collect();
        for pv in &pvs {
            let members = pv.layout.iter().flat_map(|layout| &layout.members);
            for IncomingInfo { path, progress } in members.filter_map(|member| member.incoming.as_ref()) {
                let (copied, left) = (progress.map(|of| of.copied), progress.map(|of| of.left));
                let total = copied.zip(left).map(|(copied, left)| copied.saturating_add(left));
                let progress = Progress::Done { done: copied.unwrap_or_default(), total };
                known.push(Known::new("rebuild", path, progress, pv.failure.clone()));
            }
            for layout in pv.layout.iter().filter(|layout| layout.takes_over) {
                let out = layout.members.iter().filter(|member| !member.is_in && member.content > 0);
                known.extend(out.map(|member| {
                    Known::new("take-over", &member.path, Progress::Left(member.content), pv.failure.clone())
                }));
            }
            if let Some((layout, growth)) = pv.layout.as_ref().and_then(|of| Some((of, of.growth?))) {
                let is_whole = layout.members.iter().all(|member| member.is_in && member.incoming.is_none());
                let waits = (!is_whole).then(|| "it goes on when all members have everything".to_owned());
                let waits = pv.failure.clone().or(waits);
                known.push(Known::new("grow", &pv.path, Progress::Left(growth.moves), waits));
            }
        }
        known
    }

    /// Stops a task. What is done stays done.
    pub(crate) fn stop_task(&self, id: &str) -> Result<()> {
        let goes_on = |task: &Task| task.id == id && task.ended.is_none();
        let task = self.tasks().into_iter().find(goes_on).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("stop task {id}: it is not running; see `hindcast tasks`"),
            )
        })?;
        self.seen_tasks.stopping(id, || self.stop(&task))?;
        tracing::info!(event = "task.stopped", task = id, "task stopped");
        Ok(())
    }

    fn stop(&self, Task { id, kind, subject, .. }: &Task) -> Result<()> {
        let stop = task_kinds::find(kind).and_then(|of| of.stop).ok_or_else(|| {
            let text =
                format!("stop task {id}: the server finishes {kind} on its own, and no request can stop it");
            Error::new(ErrorKind::Unsupported, text)
        })?;
        match stop {
            Stop::Flatten => self.pool.stop_flatten(subject),
            Stop::Relocate => self.pool.stop_relocation(subject).map(drop),
            Stop::Import => self.pool.cancel_import(subject),
            Stop::Export => {
                self.exports.stop(subject);
                Ok(())
            }
            Stop::Drain => self.pool.drain_pv(subject, false),
            Stop::Rebuild => self.pool.put_member_out(subject).map(drop),
            Stop::Rebalance => self.pool.stop_rebalance().map(drop),
            Stop::Scrub => self.pool.stop_scrub().map(drop),
        }
    }
}

/// Makes an event when a task is done. Stopped tasks, exports and imports have events of their own.
fn tell_of_end(task: &Task) {
    if task.state != TaskState::Done {
        return;
    }
    let subject = task.subject.as_str();
    match task.kind.as_str() {
        "flatten" => tracing::info!(event = "flatten.ended", volume = subject, "flattening has ended"),
        "relocate" => tracing::info!(event = "relocation.ended", volume = subject, "relocation has ended"),
        "drain" => tracing::info!(event = "drain.ended", pv = subject, "the physical volume is empty"),
        "rebalance" => tracing::info!(event = "rebalance.ended", "rebalancing has ended"),
        "scrub" => tracing::info!(event = "scrub.ended", "the scrub of the data has ended"),
        _ => {}
    }
}

/// Starts the thread that notices the ends of tasks.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    Worker::start("tasks", LOOK, move || drop(app.tasks()))
}
