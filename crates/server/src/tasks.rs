//! Tasks: what goes on in the background for an operator, from all parts of the server.

use crate::app::App;
use crate::progress::{Known, Progress};
use hindcast_api::Task;
use hindcast_engine::pool::PvInfo;
use hindcast_engine::{Error, ErrorKind, Result};

impl App {
    /// Returns the tasks that go on, by kind.
    pub(crate) fn tasks(&self) -> Result<Vec<Task>> {
        let mut known: Vec<Known> = Vec::new();
        for volume in self.pool.volumes() {
            let name = &volume.name;
            // A volume that was deleted meanwhile has no tasks.
            if let Ok(Some(found)) = self.pool.flattening(name) {
                let progress = Progress::Done { done: found.position, total: Some(volume.size) };
                known.push(Known::new("flatten", name, progress, found.stalled));
            }
            if let Ok(Some(found)) = self.pool.relocation(name) {
                let progress = Progress::Done { done: found.position, total: Some(volume.size) };
                known.push(Known::new("relocate", name, progress, None));
            }
            if let Some(Ok(Some(found))) = volume.importing.then(|| self.pool.unfinished_import(name)) {
                let progress = Progress::Done { done: found.position, total: Some(volume.size) };
                let waits = "the stream that fills the volume is not complete".to_owned();
                known.push(Known::new("import", name, progress, Some(waits)).without_stop());
            }
        }
        let draining = |pv: &PvInfo| pv.draining && pv.used > 0;
        known.extend(
            self.pool
                .pvs()
                .iter()
                .filter(|pv| draining(pv))
                .map(|pv| Known::new("drain", &pv.path, Progress::Left(pv.used), pv.failure.clone())),
        );
        for pv in self.pool.pvs() {
            let members = pv.layout.iter().flat_map(|layout| &layout.members);
            for (onto, done) in members.filter_map(|member| member.incoming.as_ref()) {
                let progress = Progress::Done { done: *done, total: Some(pv.size) };
                known.push(Known::new("rebuild", onto, progress, pv.failure.clone()));
            }
        }
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
        Ok(self.seen_tasks.shown(known))
    }

    /// Stops a task. What is done stays done.
    pub(crate) fn stop_task(&self, id: &str) -> Result<()> {
        let task = self.tasks()?.into_iter().find(|task| task.id == id).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("stop task {id}: it does not go on; see `hindcast tasks`"),
            )
        })?;
        let subject = task.subject.as_str();
        match task.kind.as_str() {
            "flatten" => self.pool.stop_flatten(subject)?,
            "relocate" => drop(self.pool.stop_relocation(subject)?),
            "drain" => self.pool.drain_pv(subject, false)?,
            "rebuild" => drop(self.pool.put_member_out(subject)?),
            "rebalance" => drop(self.pool.stop_rebalance()?),
            "scrub" => drop(self.pool.stop_scrub()?),
            kind => {
                let text = format!("stop task {id}: {kind} can't be stopped; delete the volume instead");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        tracing::info!(event = "task.stopped", task = id, "task stopped");
        Ok(())
    }
}
