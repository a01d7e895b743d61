//! The durable state of a logical unit. It is stored as a few short lines of text, so that an
//! engineer can read it after a failure.

use super::reservation::{Name, Registration, Reservation, Reservations, Type};
use super::state::Modes;
use hindcast_engine::{Error, ErrorKind, Result};
use std::fmt::Write;

const FIRST_LINE: &str = "hindcast logical unit 1";

/// The durable state of a logical unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The saved mode parameters, or `None` if no command saved them.
    pub(crate) modes: Option<Modes>,
    /// The registrations and the reservation, if APTPL is set.
    pub(crate) reservations: Option<Reservations>,
    /// Whether a sanitize operation has begun and has not succeeded.
    pub(crate) sanitizing: bool,
}

/// Returns a port name in its stored form: tabs replace spaces.
fn written(name: &str) -> String {
    name.replace(' ', "\t")
}

impl Saved {
    /// Returns the state as text. A space ends a field, and a name may contain spaces. Therefore a
    /// tab replaces each space of a name, because no name contains a tab.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{FIRST_LINE}\n");
        if let Some(m) = &self.modes {
            let (wce, swp, sense) =
                (u8::from(m.write_cache), u8::from(m.protected), u8::from(m.descriptor_sense));
            let armed = u8::from(m.threshold_enabled);
            let _ = writeln!(text, "mode {wce} {swp} {sense} {armed} {}", m.threshold);
        }
        if let Some(reservations) = &self.reservations {
            text.push_str("aptpl\n");
            for r in &reservations.registrations {
                let (key, id, all) = (r.key, r.relative_id, u8::from(r.all_ports));
                let (initiator, port) = (written(&r.name.initiator), written(&r.name.port));
                let _ = writeln!(text, "register {key:016x} {id} {all} {initiator} {port}");
            }
            if let Some(r) = &reservations.reservation {
                let kind = r.kind as u8;
                let (initiator, port) = (written(&r.holder.initiator), written(&r.holder.port));
                let _ = writeln!(text, "reserve {kind} {initiator} {port}");
            }
        }
        if self.sanitizing {
            text.push_str("sanitizing\n");
        }
        text.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Saved> {
        let bad =
            |line: &str| Error::new(ErrorKind::Corrupt, format!("read a logical unit's state: {line:?}"));
        let text = std::str::from_utf8(bytes).map_err(|_| bad("not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(bad("the first line is unknown"));
        }
        let mut saved = Saved::default();
        for line in lines {
            saved.line(line).ok_or_else(|| bad(line))?;
        }
        Ok(saved)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let fields: Vec<&str> = line.split(' ').collect();
        let flag = |text: &str| matches!(text, "0" | "1").then_some(text == "1");
        let name = |i: &str, p: &str| {
            let read = |text: &str| text.replace('\t', " ");
            Name { initiator: read(i).into(), port: read(p).into() }
        };
        match fields[..] {
            ["mode", wce, swp, sense, armed, threshold] => {
                self.modes = Some(Modes {
                    write_cache: flag(wce)?,
                    protected: flag(swp)?,
                    descriptor_sense: flag(sense)?,
                    threshold_enabled: flag(armed)?,
                    threshold: threshold.parse().ok()?,
                });
            }
            ["aptpl"] => self.reservations = Some(Reservations { aptpl: true, ..Reservations::default() }),
            ["register", key, id, all, initiator, port] => {
                self.reservations.as_mut()?.registrations.push(Registration {
                    name: name(initiator, port),
                    key: u64::from_str_radix(key, 16).ok()?,
                    relative_id: id.parse().ok()?,
                    all_ports: flag(all)?,
                });
            }
            ["reserve", kind, initiator, port] => {
                let kind = Type::from_wire(kind.parse().ok()?)?;
                let holder = name(initiator, port);
                let reservations = self.reservations.as_mut()?;
                // A reservation for all registrants remains while any registrant is left. The nexus
                // that made it may have unregistered.
                let of_all = kind.all_registrants() && !reservations.registrations.is_empty();
                if !of_all && reservations.key_of(&holder).is_none() {
                    return None;
                }
                reservations.reservation = Some(Reservation { kind, holder });
            }
            ["sanitizing"] => self.sanitizing = true,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Saved {
        let name = Name { initiator: "iqn.a,i,0x1".into(), port: "iqn.t,t,0x0001".into() };
        let registration = Registration { name: name.clone(), key: 0x1234, relative_id: 1, all_ports: true };
        let reservation = Some(Reservation { kind: Type::ExclusiveAccess, holder: name });
        let reservations =
            Reservations { registrations: vec![registration], reservation, generation: 0, aptpl: true };
        Saved { modes: Some(Modes::default()), reservations: Some(reservations), sanitizing: true }
    }

    #[test]
    fn it_survives_the_round_trip() {
        for saved in [Saved::default(), full()] {
            assert_eq!(Saved::decode(&saved.encode()).unwrap(), saved);
        }
        let mut with_blanks = full();
        let reservations = with_blanks.reservations.as_mut().unwrap();
        reservations.registrations[0].name.initiator = "iqn.a:win  10_b,i,0x1".into();
        reservations.reservation.as_mut().unwrap().holder.initiator = "iqn.a:win  10_b,i,0x1".into();
        assert_eq!(Saved::decode(&with_blanks.encode()).unwrap(), with_blanks);
        let text = String::from_utf8(with_blanks.encode()).unwrap();
        assert!(text.contains("reserve 3 iqn.a:win\t\t10_b,i,0x1 iqn.t,t,0x0001\n"), "{text}");
        let text = String::from_utf8(full().encode()).unwrap();
        assert!(text.contains("register 0000000000001234 1 1 iqn.a,i,0x1 iqn.t,t,0x0001\n"), "{text}");
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let good = String::from_utf8(full().encode()).unwrap();
        for (from, to) in [
            ("unit 1", "unit 2"),
            ("register 0", "register x"),
            ("aptpl\n", ""),
            ("reserve 3", "reserve 4"),
            ("mode 1", "mode 2"),
        ] {
            assert!(good.contains(from), "{from}");
            let bad = good.replace(from, to);
            assert_eq!(Saved::decode(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{from}");
        }
        assert!(Saved::decode(&[0xff]).is_err());
        assert!(Saved::decode(b"").is_err());
    }
}
