//! Tasks: what goes on in the background for an operator, from all parts of the server.

use crate::app::App;
use crate::periodic::Worker;
use crate::progress::{End, Known, Progress};
use hindcast_api::{Task, TaskState};
use hindcast_engine::pool::PvInfo;
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
    pub(crate) fn tasks(&self) -> Result<Vec<Task>> {
        let mut known = self.tasks_of_volumes();
        known.extend(self.tasks_of_pvs());
        let rebalance = self.pool.rebalancing();
        if rebalance.running {
            let progress = Progress::Done { done: rebalance.seen_bytes, total: Some(rebalance.used_bytes) };
            known.push(Known::new("rebalance", "pool", progress, None));
        }
        let scrub = self.pool.data_scrub();
        if scrub.running {
            let done = scrub.verified + scrub.unknown + scrub.damaged + scrub.unreadable;
            let waits = scrub.paused.then(|| "it is paused".to_owned());
            known.push(Known::new("scrub", "pool", Progress::Done { done, total: Some(scrub.total) }, waits));
        }
        known.extend(self.exports.running().into_iter().map(|(address, done)| {
            Known::new("export", &address, Progress::Done { done, total: None }, None)
        }));
        if self.pool.dissolving() > 0 {
            known.push(Known::own("dissolve", "pool"));
        }
        let is_there = |task: &Task| {
            !OF_VOLUMES.contains(&task.kind.as_str()) || self.pool.volume(&task.subject).is_ok()
        };
        Ok(self.seen_tasks.shown(known, is_there, tell_of_end))
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
            for (onto, done) in members.filter_map(|member| member.incoming.as_ref()) {
                let progress = Progress::Done { done: *done, total: Some(pv.size) };
                known.push(Known::new("rebuild", onto, progress, pv.failure.clone()));
            }
        }
        known
    }

    /// Stops a task. What is done stays done.
    pub(crate) fn stop_task(&self, id: &str) -> Result<()> {
        let goes_on = |task: &Task| task.id == id && task.ended.is_none();
        let task = self.tasks()?.into_iter().find(goes_on).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("stop task {id}: it does not go on; see `hindcast tasks`"),
            )
        })?;
        let subject = task.subject.as_str();
        match task.kind.as_str() {
            "flatten" => self.pool.stop_flatten(subject)?,
            "relocate" => drop(self.pool.stop_relocation(subject)?),
            "import" => self.pool.cancel_import(subject)?,
            "export" => self.exports.stop(subject),
            "drain" => self.pool.drain_pv(subject, false)?,
            "rebuild" => drop(self.pool.put_member_out(subject)?),
            "rebalance" => drop(self.pool.stop_rebalance()?),
            "scrub" => drop(self.pool.stop_scrub()?),
            kind => {
                let text =
                    format!("stop task {id}: the server does {kind} by itself, and it can't be stopped");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        self.seen_tasks.ends(id, End::Stopped);
        tracing::info!(event = "task.stopped", task = id, "task stopped");
        Ok(())
    }
}

/// Makes an event of the end of a task. A task that was stopped, or an export or import, has one
/// already.
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
    Worker::start("tasks", LOOK, move || {
        if let Err(error) = app.tasks() {
            tracing::debug!(%error, "the tasks are not known");
        }
    })
}
