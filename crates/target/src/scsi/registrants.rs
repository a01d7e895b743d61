//! Functions of persistent reservations for the daemon and the operator. They list the registrants,
//! and they change registrations when a target port is renamed or removed.
//!
//! The daemon must change these registrations. An initiator cannot unregister a registration by a
//! port that it can no longer log in to.

use super::lu::{LogicalUnit, LuNexus, gate};
use super::persist::Saved;
use super::reservation::{Name, News, Reservations};
use super::sense::{Asc, Sense, SenseKey};
use hindcast_engine::Result;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// One registration, in the form that the operator sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registrant {
    /// The initiator port: `iqn,i,0xISID`.
    pub initiator: String,
    /// The target port: `iqn,t,0xTPGT`.
    pub port: String,
    /// The reservation key of the registration.
    pub key: u64,
    /// The type of the reservation, if this registrant holds the reservation.
    pub holds: Option<&'static str>,
}

/// Returns the target name in the name of a target port.
pub fn target_of_port(port: &str) -> &str {
    port.rsplit_once(",t,0x").map_or(port, |(target, _)| target)
}

fn registrants(reservations: &Reservations) -> Vec<Registrant> {
    let kind = reservations.reservation.as_ref().map(|r| r.kind.text());
    let told = reservations.registrations.iter().map(|r| Registrant {
        initiator: r.name.initiator.to_string(),
        port: r.name.port.to_string(),
        key: r.key,
        holds: kind.filter(|_| reservations.holds(&r.name)),
    });
    told.collect()
}

/// Returns the registrations in `state`, the content of a logical unit's store.
pub fn stored_registrants(state: &[u8]) -> Result<Vec<Registrant>> {
    Ok(Saved::decode(state)?.reservations.as_ref().map(registrants).unwrap_or_default())
}

/// Keeps only the registrations by ports that `keep` accepts. Returns the new content of a logical
/// unit's store for the content `state`. Returns `None` if the content does not change.
pub fn retain_stored(state: &[u8], keep: impl Fn(&str) -> bool) -> Result<Option<Vec<u8>>> {
    change_stored(state, |reservations| drop(reservations.retain_ports(&keep)))
}

/// Renames the target `old` to `new` in registrations. Returns the new content of a logical unit's
/// store for the content `state`. Returns `None` if the content does not change.
pub fn rename_stored(state: &[u8], old: &str, new: &str) -> Result<Option<Vec<u8>>> {
    change_stored(state, |reservations| reservations.rename_target(old, new))
}

fn change_stored(state: &[u8], change: impl FnOnce(&mut Reservations)) -> Result<Option<Vec<u8>>> {
    let mut saved = Saved::decode(state)?;
    let before = saved.clone();
    if let Some(reservations) = &mut saved.reservations {
        change(reservations);
    }
    Ok((saved != before).then(|| saved.encode()))
}

impl LogicalUnit {
    /// Returns the registrants of this logical unit.
    pub fn registrants(&self) -> Vec<Registrant> {
        registrants(&self.reservations.lock())
    }

    /// Renames the target `old` to `new`. The sessions of the target continue. Registrations by
    /// ports of `old` become registrations by ports of `new`. Later registrations by these sessions
    /// use the new name too.
    pub fn rename_target(&self, old: &str, new: &str) -> Result<()> {
        let changing = self.changing.lock();
        let mut changed = self.reservations.lock().clone();
        changed.rename_target(old, new);
        self.commit(&changing, changed)?;
        let mut renamed = self.renamed.write();
        renamed.values_mut().filter(|now| **now == *old).for_each(|now| *now = new.into());
        renamed.insert(old.into(), new.into());
        renamed.retain(|before, now| before != now);
        Ok(())
    }

    /// Removes registrations by ports that `keep` does not accept, as if the initiators had
    /// unregistered. Returns the number of removed registrations.
    pub fn retain_ports(&self, keep: impl Fn(&str) -> bool) -> Result<usize> {
        let changing = self.changing.lock();
        let mut changed = self.reservations.lock().clone();
        let before = changed.registrations.len();
        let news = changed.retain_ports(&keep);
        let gone = before - changed.registrations.len();
        if gone > 0 {
            self.commit(&changing, changed)?;
        }
        drop(changing);
        self.tell(&news, None);
        Ok(gone)
    }

    /// Removes all registrations and reservations, including a reservation by RESERVE(6).
    /// Registrants get a unit attention. Returns the number of removed registrations.
    pub fn clear_reservations(&self) -> Result<usize> {
        let changing = self.changing.lock();
        let mut changed = self.reservations.lock().clone();
        let gone = changed.registrations.len();
        let news = changed.clear_all();
        self.commit(&changing, changed)?;
        let reserved = self.reserved_by.lock().take().is_some();
        self.set_gate(gate::RESERVED, false);
        drop(changing);
        self.tell(&news, None);
        Ok(gone + usize::from(reserved))
    }

    /// Replaces the reservations with `changed`. The change is durable if APTPL is or was set. The
    /// caller took `changing` before it read the old reservations.
    pub(crate) fn commit(&self, _changing: &MutexGuard<'_, ()>, changed: Reservations) -> Result<()> {
        if changed.aptpl || self.reservations.lock().aptpl {
            let kept = changed.aptpl.then(|| changed.clone());
            self.keep(|saved| saved.reservations = kept)?;
        }
        let mut reservations = self.reservations.lock();
        self.set_gate(gate::PERSISTENT, !changed.registrations.is_empty());
        *reservations = changed;
        Ok(())
    }

    /// Establishes the unit attentions of `news`, and aborts the tasks of the nexuses in it. It
    /// then waits for the writes of these tasks. The session of `by` aborts its own tasks.
    pub(crate) fn tell(&self, news: &News, by: Option<&Arc<LuNexus>>) {
        if news.attentions.is_empty() && news.abort.is_empty() {
            return;
        }
        for path in self.paths() {
            let name = path.name();
            if news.abort.contains(&name) && !by.is_some_and(|by| Arc::ptr_eq(&path, by)) {
                path.abort_tasks();
            }
            for (_, asc) in news.attentions.iter().filter(|(n, _)| *n == name) {
                path.establish(Sense::new(SenseKey::UnitAttention, *asc));
            }
        }
        if !news.abort.is_empty() {
            self.settle(); // GOOD promises that those who were preempted write nothing any more
        }
    }
}

impl Reservations {
    fn rename_target(&mut self, old: &str, new: &str) {
        let rename = |name: &mut Name| {
            if target_of_port(&name.port) == old {
                name.port = format!("{new}{}", &name.port[old.len()..]).into();
            }
        };
        self.registrations.iter_mut().for_each(|r| rename(&mut r.name));
        self.reservation.iter_mut().for_each(|r| rename(&mut r.holder));
    }

    fn retain_ports(&mut self, keep: &impl Fn(&str) -> bool) -> News {
        let mut news = News::default();
        let all = self.registrations.iter().map(|r| r.name.clone());
        let gone: Vec<Name> = all.filter(|name| !keep(&name.port)).collect();
        for name in &gone {
            self.unregister(name, &mut news);
        }
        if !gone.is_empty() {
            self.bump();
        }
        news
    }

    fn clear_all(&mut self) -> News {
        let all = self.registrations.iter().map(|r| (r.name.clone(), Asc::RESERVATIONS_PREEMPTED));
        let news = News { attentions: all.collect(), abort: Vec::new() };
        *self = Reservations { generation: self.generation, ..Reservations::default() };
        self.bump();
        news
    }
}

#[cfg(test)]
mod tests {
    use super::super::reservation::{Registration, Reservation, Type};
    use super::*;

    fn registered(ports: &[&str]) -> Saved {
        let registration = |port: &&str| Registration {
            name: Name { initiator: "iqn.a,i,0x1".into(), port: (*port).into() },
            key: 7,
            relative_id: 1,
            all_ports: false,
        };
        let registrations: Vec<Registration> = ports.iter().map(registration).collect();
        let reservation = registrations
            .first()
            .map(|r| Reservation { kind: Type::ExclusiveAccess, holder: r.name.clone() });
        let reservations = Reservations { registrations, reservation, generation: 0, aptpl: true };
        Saved { reservations: Some(reservations), ..Saved::default() }
    }

    #[test]
    fn stored_registrations_follow_a_name_and_go_with_a_port() {
        let state = registered(&["iqn.t,t,0x0001", "iqn.other,t,0x0001"]).encode();
        let renamed = rename_stored(&state, "iqn.t", "iqn.new").unwrap().unwrap();
        let told = stored_registrants(&renamed).unwrap();
        let ports: Vec<&str> = told.iter().map(|r| &*r.port).collect();
        assert_eq!(ports, ["iqn.new,t,0x0001", "iqn.other,t,0x0001"]);
        assert_eq!(told[0].holds, Some("exclusive access"));
        assert_eq!(told[1].holds, None);
        assert_eq!(rename_stored(&state, "iqn", "iqn.new").unwrap(), None, "a part of a name is no name");

        let left = retain_stored(&state, |port| target_of_port(port) != "iqn.t").unwrap().unwrap();
        let told = stored_registrants(&left).unwrap();
        assert_eq!((told.len(), told[0].holds), (1, None), "the reservation went with its holder");
        assert_eq!(retain_stored(&state, |_| true).unwrap(), None);
        assert!(retain_stored(b"damaged", |_| true).is_err());
    }
}
