//! The options that choose how a volume keeps its history.

use crate::failure::Failure;
use crate::select::duration;
use hindcast_api::{Anchors, Compression, Encoding, PatchCdp, Size};

/// Options about history of `volume create` and `volume set`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Keep {
    /// Keep a history of every write, as parity (old content XOR new content), undo (the old
    /// content) or redo (the new content); off ends the history
    #[arg(long, group = "property", value_name = "parity|undo|redo|off", value_parser = mode)]
    cdp: Option<Mode>,
    /// Compression of the history [default: zero-run]
    #[arg(long, group = "property", value_name = "HOW")]
    cdp_compression: Option<Compression>,
    /// When the server inserts an anchor, from which a recovery starts: model (the cost model
    /// decides), after N writes of chunks, after a time such as 10m, or never [default: model]
    #[arg(long, group = "property", value_name = "model|N|TIME|never", value_parser = anchors)]
    anchor: Option<Anchors>,
    /// Maximum number of writes of chunks between two anchors, in addition to --anchor; 0 means no
    /// limit
    #[arg(long, group = "property", value_name = "N")]
    anchor_max: Option<u64>,
    /// Time after which history expires, such as 7d; all means no limit
    #[arg(long, group = "property", value_name = "TIME|all", value_parser = retain)]
    retain: Option<u64>,
    /// Maximum size of the history; the oldest part is deleted first; all means no limit
    #[arg(long, group = "property", value_name = "SIZE|all", value_parser = retain_size)]
    retain_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    On(Encoding),
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "off" => Ok(Mode::Off),
        _ => text.parse().map(Mode::On).map_err(|_| "the value is parity, undo, redo or off".into()),
    }
}

fn anchors(text: &str) -> Result<Anchors, String> {
    let wrong = || "the value is model, a number of writes, a time such as 10m, or never".to_owned();
    match text {
        "model" => Ok(Anchors::Model),
        "never" => Ok(Anchors::Never),
        _ if text.bytes().all(|b| b.is_ascii_digit()) => {
            let count = text.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
            Ok(Anchors::Writes { count })
        }
        _ => match duration(text).map_err(|_| wrong())?.as_secs() {
            0 => Err(wrong()),
            seconds => Ok(Anchors::Time { seconds }),
        },
    }
}

/// Parses a retention time. `all` becomes 0, which means no limit in the API.
fn retain(text: &str) -> Result<u64, String> {
    match text {
        "all" => Ok(0),
        _ => match duration(text)?.as_secs() {
            0 => Err("history is kept for at least 1s; all means no limit".into()),
            seconds => Ok(seconds),
        },
    }
}

fn retain_size(text: &str) -> Result<u64, String> {
    match text {
        "all" => Ok(0),
        _ => match text.parse::<Size>().map_err(|e| e.to_string())?.0 {
            0 => Err("the size must be more than 0; all means no limit".into()),
            bytes => Ok(bytes),
        },
    }
}

impl Keep {
    /// Returns the history settings of a new volume, if there are any.
    pub(crate) fn begin(&self) -> Result<Option<PatchCdp>, Failure> {
        match self.cdp.is_none() && self.patch().is_some() {
            true => Err(Failure::usage("options of a history need --cdp: add for example --cdp parity")),
            false => self.change(),
        }
    }

    /// Returns the changes of the history settings, if there are any.
    pub(crate) fn change(&self) -> Result<Option<PatchCdp>, Failure> {
        let rest = Keep { cdp: None, ..self.clone() };
        match self.cdp == Some(Mode::Off) && rest.patch().is_some() {
            true => {
                Err(Failure::usage("--cdp off ends the history: leave out the other options of the history"))
            }
            false => Ok(self.patch()),
        }
    }

    fn patch(&self) -> Option<PatchCdp> {
        let patch = PatchCdp {
            enabled: self.cdp.map(|mode| mode != Mode::Off),
            encoding: self.cdp.and_then(|mode| match mode {
                Mode::Off => None,
                Mode::On(encoding) => Some(encoding),
            }),
            compression: self.cdp_compression,
            anchors: self.anchor,
            max_distance: self.anchor_max,
            retain_seconds: self.retain,
            retain_bytes: self.retain_size,
        };
        (patch != PatchCdp::default()).then_some(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_a_word_a_number_or_a_time() {
        for (text, policy) in [
            ("model", Anchors::Model),
            ("never", Anchors::Never),
            ("10000", Anchors::Writes { count: 10_000 }),
            ("10m", Anchors::Time { seconds: 600 }),
            ("5s", Anchors::Time { seconds: 5 }),
        ] {
            assert_eq!(anchors(text), Ok(policy));
        }
        for bad in ["", "0", "0s", "x", "-1", "10x"] {
            assert!(anchors(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_said_changes_nothing() {
        assert_eq!(Keep::default().patch(), None);
        let off = Keep { cdp: Some(Mode::Off), ..Keep::default() }.patch().unwrap();
        assert_eq!((off.enabled, off.encoding), (Some(false), None));
        let on = Keep { cdp: Some(Mode::On(Encoding::Undo)), retain: Some(0), ..Keep::default() };
        let on = on.patch().unwrap();
        assert_eq!((on.enabled, on.encoding, on.retain_seconds), (Some(true), Some(Encoding::Undo), Some(0)));
        assert_eq!((retain("7d"), retain("all")), (Ok(604_800), Ok(0)));
        assert!(retain("0s").is_err() && retain_size("0").is_err());
        assert_eq!(retain_size("1.5G"), Ok(3 << 29));
    }

    #[test]
    fn what_would_be_dropped_silently_is_a_slip() {
        let retain = Keep { retain: Some(60), ..Keep::default() };
        assert!(retain.begin().is_err_and(|e| e.code() == 2));
        assert_eq!(retain.change().unwrap().unwrap().retain_seconds, Some(60));
        let off = Keep { cdp: Some(Mode::Off), ..Keep::default() };
        assert_eq!(off.change().unwrap().unwrap().enabled, Some(false));
        let both = Keep { cdp: Some(Mode::Off), ..retain.clone() };
        assert!(both.begin().is_err() && both.change().is_err_and(|e| e.code() == 2));
        let on = Keep { cdp: Some(Mode::On(Encoding::Parity)), ..retain };
        assert_eq!(on.begin().unwrap(), on.change().unwrap());
        assert_eq!(Keep::default().begin().unwrap(), None);
    }
}
