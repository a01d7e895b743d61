//! The format of the file of schedules: JSON behind the header of a
//! [`crate::atomic_file::DurableFile`].
//!
//! The server checks content that it reads like input of the operator. If a check refuses the
//! content, the file is damaged, because the server writes only checked values.

use super::plan::{MAX_VOLUMES, Plan, check_every, check_name, check_wall};
use hindcast_api::{Retention, WallClock};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The name of the file in the data directory.
pub(super) const FILE: &str = "schedules.json";
/// The kind of the file, as its header states it.
pub(super) const KIND: &str = "schedules";
/// The version of the format.
pub(super) const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    name: String,
    /// The prefix of the snapshots' names. If it is absent, it equals the name of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The UUIDs of the volumes, because a volume can be renamed.
    volumes: Vec<String>,
    /// The names of groups. Earlier builds refuse a file with a schedule that has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    every: u64,
    /// Absent: the schedule runs at multiples of the interval since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wall: Option<WallClock>,
    keep: Retention,
    paused: bool,
    since: Timestamp,
}

/// Encodes the plans as the content of the file.
pub(super) fn encode(plans: &BTreeMap<String, Plan>) -> Result<Vec<u8>> {
    let stored = plans.iter().map(|(name, plan)| Stored {
        name: name.clone(),
        prefix: (plan.prefix != *name).then(|| plan.prefix.clone()),
        volumes: plan.volumes.iter().map(Uuid::to_string).collect(),
        groups: plan.groups.clone(),
        every: plan.every,
        wall: plan.wall.clone(),
        keep: plan.keep,
        paused: plan.paused,
        since: plan.since,
    });
    serde_json::to_vec_pretty(&stored.collect::<Vec<_>>())
        .map_err(|e| Error::with_source(ErrorKind::Invalid, format!("write {FILE}"), e))
}

/// Decodes the content of the file. Fails with [`ErrorKind::Corrupt`] if the content is not valid.
pub(super) fn decode(bytes: &[u8]) -> Result<BTreeMap<String, Plan>> {
    let damaged = |why: String| Error::new(ErrorKind::Corrupt, format!("read {FILE}: {why}"));
    let stored: Vec<Stored> = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let mut plans = BTreeMap::new();
    for stored in stored {
        let name = stored.name.clone();
        let plan = plan(stored).map_err(|e| damaged(e.to_string()))?;
        if plans.values().any(|known: &Plan| known.prefix == plan.prefix) {
            return Err(damaged(format!("two schedules have the prefix {}", plan.prefix)));
        }
        if plans.insert(name.clone(), plan).is_some() {
            return Err(damaged(format!("there are two schedules {name}")));
        }
    }
    Ok(plans)
}

fn plan(stored: Stored) -> Result<Plan> {
    let prefix = stored.prefix.as_ref().unwrap_or(&stored.name).clone();
    check_name(&stored.name)?;
    check_name(&prefix)?;
    check_every(stored.every)?;
    // The zone is not looked up: without its database, other schedules run all the same.
    stored.wall.as_ref().map_or(Ok(()), |wall| check_wall(stored.every, wall))?;
    let volumes = stored.volumes.iter().map(|text| {
        Uuid::try_parse(&text.replace('-', ""))
            .map_err(|_| Error::new(ErrorKind::Corrupt, format!("{text:?} is not a UUID")))
    });
    let volumes = volumes.collect::<Result<Vec<_>>>()?;
    let count = volumes.len() + stored.groups.len();
    if count == 0 || volumes.len() > MAX_VOLUMES || stored.groups.len() > MAX_VOLUMES {
        return Err(Error::new(ErrorKind::Corrupt, "a schedule has a wrong number of volumes"));
    }
    let Stored { groups, every, wall, keep, paused, since, .. } = stored;
    Ok(Plan { prefix, volumes, groups, every, wall, keep, paused, since })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::Weekday;

    #[test]
    fn what_was_kept_is_read_and_damage_is_not() {
        let plan = Plan {
            prefix: "x".to_owned(),
            volumes: vec![Uuid::from_bytes([7; 16]), Uuid::from_bytes([0xab; 16])],
            groups: vec!["shop".into()],
            every: 3600,
            wall: Some(WallClock {
                tz: Some("Europe/Berlin".into()),
                at: None,
                on: vec![Weekday::Monday, Weekday::Sunday],
                between: Some("22:00-06:00".parse().unwrap()),
            }),
            keep: Retention { last: 3, daily: 7, ..Retention::default() },
            paused: true,
            since: "2026-11-22T03:14:15Z".parse().unwrap(),
        };
        let plans = BTreeMap::from([("auto".to_owned(), plan)]);
        let bytes = encode(&plans).unwrap();
        assert_eq!(decode(&bytes).unwrap(), plans);
        let text = String::from_utf8(bytes).unwrap();
        for (old, new) in [
            ("3600", "3"),
            ("3600", "86400"),
            ("22:00-06:00", "22:00-22:00"),
            ("\"sun\"", "\"sunday\""),
            ("\"auto\"", "\"a b\""),
            ("\"x\"", "\"-\""),
            ("07070707-", "0707070-"),
            ("\"every\"", "\"ever\""),
            ("\"paused\": true", "\"paused\": 1"),
        ] {
            let damaged = text.replacen(old, new, 1);
            assert_ne!(damaged, text, "{old}");
            assert_eq!(decode(damaged.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{new}");
        }
        let twice = format!("[{0},{0}]", text.trim().trim_start_matches('[').trim_end_matches(']'));
        assert!(decode(twice.as_bytes()).unwrap_err().to_string().contains("two schedules"));
        let twice = twice.replace("\"prefix\": \"x\"", "\"prefix\": \"y\"").replacen("\"y\"", "\"x\"", 1);
        assert!(decode(twice.as_bytes()).unwrap_err().to_string().contains("two schedules auto"));
    }

    /// The format of the file. Every later build must read it.
    #[test]
    fn golden_text() {
        let text = r#"[{"name":"auto","volumes":["07070707-0707-0707-0707-070707070707"],"every":60,
            "keep":{"last":1,"hourly":2,"daily":3,"weekly":4,"monthly":5},"paused":false,"since":"2026-11-22T03:14:15Z"}]"#;
        let plans = decode(text.as_bytes()).unwrap();
        let plan = &plans["auto"];
        assert_eq!(plan.prefix, "auto");
        assert_eq!(
            (plan.volumes.as_slice(), plan.every, plan.paused),
            (&[Uuid::from_bytes([7; 16])][..], 60, false)
        );
        assert_eq!(plan.keep, Retention { last: 1, hourly: 2, daily: 3, weekly: 4, monthly: 5 });
        assert_eq!(plan.wall, None, "a build from before there were times by the wall clock");
        // A build from before reads what this one writes, as long as no schedule has such times.
        assert!(!String::from_utf8(encode(&plans).unwrap()).unwrap().contains("wall"));
    }

    /// The format of times by the clock on the wall. A zone that no machine knows is no damage.
    #[test]
    fn golden_text_of_wall_clocks() {
        let text = r#"[{"name":"night","volumes":["07070707-0707-0707-0707-070707070707"],"every":86400,
            "wall":{"tz":"Mars/Olympus","at":"02:30","on":["mon","wed"]},
            "keep":{"last":0,"hourly":0,"daily":7,"weekly":0,"monthly":0},"paused":false,"since":"2026-11-22T03:14:15Z"},
            {"name":"work","volumes":["07070707-0707-0707-0707-070707070707"],"every":3600,
            "wall":{"tz":"UTC","between":"08:00-18:00"},
            "keep":{"last":9,"hourly":0,"daily":0,"weekly":0,"monthly":0},"paused":false,"since":"2026-11-22T03:14:15Z"}]"#;
        let plans = decode(text.as_bytes()).unwrap();
        let night = plans["night"].wall.clone().unwrap();
        assert_eq!((night.tz.as_deref(), night.at.unwrap().minutes()), (Some("Mars/Olympus"), 150));
        assert_eq!(night.on, [Weekday::Monday, Weekday::Wednesday]);
        assert!(plans["night"].timing().unwrap_err().to_string().contains("Mars/Olympus"));
        assert_eq!(plans["work"].wall.as_ref().unwrap().between.unwrap().to_string(), "08:00-18:00");
        assert!(plans["work"].timing().is_ok());
    }
}
