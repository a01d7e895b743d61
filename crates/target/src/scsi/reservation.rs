//! Persistent reservations (SPC-4 5.12): the registrations and the reservation of one logical unit,
//! and the changes by PERSISTENT RESERVE OUT.
//!
//! The module does no input or output. A change returns the unit attentions and task aborts that it
//! causes ([`News`]).

use super::outcome::Status;
use super::sense::{Asc, Sense};
use std::sync::Arc;

/// The names of the two ports of an I_T nexus. A name outlives the session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// The name of the initiator port: `iqn,i,0xISID`.
    pub(crate) initiator: Arc<str>,
    /// The name of the target port: `iqn,t,0xTPGT`.
    pub(crate) port: Arc<str>,
}

/// PERSISTENT RESERVATION TYPE (SPC-4 table 176).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl Type {
    pub(crate) fn from_wire(code: u8) -> Option<Type> {
        Some(match code {
            1 => Type::WriteExclusive,
            3 => Type::ExclusiveAccess,
            5 => Type::WriteExclusiveRegistrantsOnly,
            6 => Type::ExclusiveAccessRegistrantsOnly,
            7 => Type::WriteExclusiveAllRegistrants,
            8 => Type::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// Returns the name of the type for the operator.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Type::WriteExclusive => "write exclusive",
            Type::ExclusiveAccess => "exclusive access",
            Type::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
            Type::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
            Type::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
            Type::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
        }
    }

    /// Returns whether every registrant holds a reservation of this type.
    pub(crate) fn all_registrants(self) -> bool {
        matches!(self, Type::WriteExclusiveAllRegistrants | Type::ExclusiveAccessAllRegistrants)
    }

    /// Returns whether every registrant may read and write.
    fn for_registrants(self) -> bool {
        self as u8 >= Type::WriteExclusiveRegistrantsOnly as u8
    }

    /// Returns whether nexuses that are not registered may read.
    fn readable(self) -> bool {
        matches!(
            self,
            Type::WriteExclusive | Type::WriteExclusiveRegistrantsOnly | Type::WriteExclusiveAllRegistrants
        )
    }
}

/// One registered I_T nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) name: Name,
    pub(crate) key: u64,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub(crate) relative_id: u16,
    /// Whether the registration was made with ALL_TG_PT.
    pub(crate) all_ports: bool,
}

/// The persistent reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: Type,
    /// The nexus that made the reservation. If the type is for all registrants, every registrant is
    /// a holder.
    pub(crate) holder: Name,
}

/// The access of a command to the medium, for the conflict rules (SPC-4 table 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Write,
    /// Access that conflicts like a write, but any registration of the nexus allows it.
    Registered,
}

/// The failure of a command on reservations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    Conflict,
    Check(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Refusal {
        Refusal::Check(sense)
    }
}

impl From<Refusal> for super::outcome::Ending {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => super::outcome::Ending::Status(Status::ReservationConflict),
            Refusal::Check(sense) => super::outcome::Ending::Check(sense),
        }
    }
}

/// Effects of a change of reservations: unit attentions to establish, and nexuses whose tasks to
/// abort.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) attentions: Vec<(Name, Asc)>,
    pub(crate) abort: Vec<Name>,
}

/// The result of a service action of PERSISTENT RESERVE OUT.
pub(crate) type Done = Result<News, Refusal>;

/// The registrations and the persistent reservation of one logical unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    pub(crate) registrations: Vec<Registration>,
    pub(crate) reservation: Option<Reservation>,
    /// PRGENERATION. It is zero when the server starts (SPC-4 6.15.2).
    pub(crate) generation: u32,
    /// APTPL: whether the registrations and the reservation survive power loss.
    pub(crate) aptpl: bool,
}

/// Registrations that one logical unit holds at most. Further registrations are refused.
pub(crate) const MAX_REGISTRATIONS: usize = 1024;

impl Reservations {
    pub(crate) fn key_of(&self, name: &Name) -> Option<u64> {
        self.registrations.iter().find(|r| r.name == *name).map(|r| r.key)
    }

    /// Returns whether `name` holds the reservation.
    pub(crate) fn holds(&self, name: &Name) -> bool {
        match &self.reservation {
            Some(r) if r.kind.all_registrants() => self.key_of(name).is_some(),
            Some(r) => r.holder == *name,
            None => false,
        }
    }

    /// Returns whether the reservation allows the access `want` of `name`.
    pub(crate) fn allows(&self, name: &Name, want: Want) -> bool {
        let Some(reservation) = &self.reservation else {
            return true;
        };
        if self.holds(name) {
            return true;
        }
        let registered = self.key_of(name).is_some();
        match want {
            Want::Registered => registered,
            Want::Read => reservation.kind.readable() || (registered && reservation.kind.for_registrants()),
            Want::Write => registered && reservation.kind.for_registrants(),
        }
    }

    /// Returns the reservation key that READ RESERVATION reports (SPC-4 6.15.3.2). It is 0 if the
    /// type is for all registrants.
    pub(crate) fn reservation_key(&self) -> u64 {
        match &self.reservation {
            Some(r) if !r.kind.all_registrants() => self.key_of(&r.holder).unwrap_or(0),
            _ => 0,
        }
    }

    /// Checks that the nexus is registered with `key`. Every service action but REGISTER begins
    /// with this check.
    fn check_key(&self, name: &Name, key: u64) -> Result<(), Refusal> {
        if self.key_of(name) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }

    /// Carries out REGISTER for the nexus itself (`names[0]`). With ALL_TG_PT or SPEC_I_PT it also
    /// registers other nexuses. `key` is `None` for REGISTER AND IGNORE EXISTING KEY.
    pub(crate) fn register(
        &mut self,
        names: &[Registration],
        key: Option<u64>,
        new_key: u64,
        aptpl: bool,
    ) -> Done {
        let Some(own) = names.first() else {
            return Ok(News::default());
        };
        let old = self.key_of(&own.name);
        match (old, key) {
            (Some(old), Some(key)) if old != key => return Err(Refusal::Conflict),
            (None, Some(key)) if key != 0 => return Err(Refusal::Conflict),
            (None, _) if new_key == 0 => return Ok(News::default()),
            _ => {}
        }
        let fresh = names.iter().filter(|r| self.key_of(&r.name).is_none()).count();
        if new_key != 0 && self.registrations.len() + fresh > MAX_REGISTRATIONS {
            return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        let mut news = News::default();
        if new_key == 0 {
            self.unregister(&own.name, &mut news);
        } else {
            for registration in names {
                match self.registrations.iter_mut().find(|r| r.name == registration.name) {
                    Some(known) => known.key = new_key,
                    None => self.registrations.push(Registration { key: new_key, ..registration.clone() }),
                }
            }
        }
        self.aptpl = aptpl;
        self.bump();
        Ok(news)
    }

    pub(crate) fn bump(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes a registration. It also removes a reservation that depends on the registration
    /// (SPC-4 5.12.11.2.3).
    pub(crate) fn unregister(&mut self, name: &Name, news: &mut News) {
        let Some(at) = self.registrations.iter().position(|r| r.name == *name) else {
            return;
        };
        let held = self.holds(name);
        self.registrations.remove(at);
        if let Some(reservation) = &self.reservation
            && held
            && (!reservation.kind.all_registrants() || self.registrations.is_empty())
        {
            let kind = reservation.kind;
            self.reservation = None;
            if kind.for_registrants() {
                self.tell(news, name, Asc::RESERVATIONS_RELEASED);
            }
        }
    }

    /// Adds a unit attention for all registrants except `but`.
    fn tell(&self, news: &mut News, but: &Name, asc: Asc) {
        let others = self.registrations.iter().filter(|r| r.name != *but);
        news.attentions.extend(others.map(|r| (r.name.clone(), asc)));
    }

    /// Carries out RESERVE (SPC-4 5.12.9).
    pub(crate) fn reserve(&mut self, name: &Name, key: u64, kind: Type) -> Done {
        self.check_key(name, key)?;
        match &self.reservation {
            None => self.reservation = Some(Reservation { kind, holder: name.clone() }),
            Some(held) if held.kind == kind && self.holds(name) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(News::default())
    }

    /// Carries out RELEASE (SPC-4 5.12.11.2.2). It releases nothing if the nexus does not hold the
    /// reservation.
    pub(crate) fn release(&mut self, name: &Name, key: u64, kind: Option<Type>) -> Done {
        self.check_key(name, key)?;
        let mut news = News::default();
        let Some(reservation) = &self.reservation else {
            return Ok(news);
        };
        if !self.holds(name) {
            return Ok(news);
        }
        if kind != Some(reservation.kind) {
            return Err(Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into());
        }
        if reservation.kind.for_registrants() {
            self.tell(&mut news, name, Asc::RESERVATIONS_RELEASED);
        }
        self.reservation = None;
        Ok(news)
    }

    /// Carries out CLEAR (SPC-4 5.12.11.2.6).
    pub(crate) fn clear(&mut self, name: &Name, key: u64) -> Done {
        self.check_key(name, key)?;
        let mut news = News::default();
        self.tell(&mut news, name, Asc::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.bump();
        Ok(news)
    }

    /// Carries out PREEMPT and PREEMPT AND ABORT (SPC-4 5.12.11.2.4, 5.12.11.2.5).
    pub(crate) fn preempt(
        &mut self,
        name: &Name,
        key: u64,
        victim: u64,
        kind: Option<Type>,
        abort: bool,
    ) -> Done {
        self.check_key(name, key)?;
        let all = self.reservation.as_ref().is_some_and(|r| r.kind.all_registrants());
        // Whether the victim's key preempts the reservation, and not only registrations.
        let takes = match &self.reservation {
            Some(_) if all => victim == 0,
            Some(_) => victim != 0 && victim == self.reservation_key(),
            None => false,
        };
        if victim == 0 && !takes {
            return Err(Sense::parameter_field(8).into());
        }
        let kind = match (takes, kind) {
            (true, None) => return Err(Sense::cdb_bit(2, 3).into()),
            (true, Some(kind)) => Some(kind),
            (false, _) => None,
        };
        let matches = |r: &Registration| if all && victim == 0 { r.name != *name } else { r.key == victim };
        if !takes && !self.registrations.iter().any(matches) {
            return Err(Refusal::Conflict);
        }
        let mut news = News::default();
        for gone in self.registrations.iter().filter(|r| matches(r)) {
            if gone.name != *name {
                news.attentions.push((gone.name.clone(), Asc::REGISTRATIONS_PREEMPTED));
            }
            if abort {
                news.abort.push(gone.name.clone());
            }
        }
        // A nexus that preempts its own key keeps its registration if it preempts the reservation.
        // Otherwise it loses its registration.
        self.registrations.retain(|r| !matches(r) || (takes && r.name == *name));
        self.settle(name, kind, &mut news);
        self.bump();
        Ok(news)
    }

    /// Sets the reservation after a preemption. With `kind`, `name` holds a reservation of that
    /// type. Without `kind`, the reservation stays until no registration is left.
    fn settle(&mut self, name: &Name, kind: Option<Type>, news: &mut News) {
        let Some(kind) = kind else {
            if self.registrations.is_empty() {
                self.reservation = None;
            }
            return;
        };
        let old = self.reservation.replace(Reservation { kind, holder: name.clone() });
        if old.is_some_and(|old| old.kind != kind && old.kind.for_registrants()) {
            self.tell(news, name, Asc::RESERVATIONS_RELEASED);
        }
    }

    /// Carries out REGISTER AND MOVE (SPC-4 5.12.8).
    pub(crate) fn register_and_move(
        &mut self,
        name: &Name,
        key: u64,
        to: &Registration,
        unregister: bool,
        aptpl: bool,
    ) -> Done {
        self.check_key(name, key)?;
        let kind = match &self.reservation {
            Some(r) if r.kind.all_registrants() => return Err(Refusal::Conflict),
            Some(r) if r.holder == *name => r.kind,
            _ => return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into()),
        };
        if to.key == 0 {
            return Err(Sense::parameter_field(8).into());
        }
        if to.name == *name {
            return Err(Sense::parameter_field(24).into());
        }
        let full = self.registrations.len() >= MAX_REGISTRATIONS;
        match self.registrations.iter_mut().find(|r| r.name == to.name) {
            Some(known) => known.key = to.key,
            None if full => {
                return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
            }
            None => self.registrations.push(to.clone()),
        }
        self.reservation = Some(Reservation { kind, holder: to.name.clone() });
        if unregister {
            self.registrations.retain(|r| r.name != *name);
        }
        self.aptpl = aptpl;
        self.bump();
        Ok(News::default())
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;
