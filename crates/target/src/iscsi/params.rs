//! Operational parameters and the negotiation of their keys (RFC 7143, 6.2 and 13). The module does
//! no input or output.

use super::config::{DigestPolicy, IscsiConfig, LENGTHS};
use super::pdu::Digests;
use super::text::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT, yes_no};
use std::ops::RangeInclusive;

/// The negotiated parameters of a connection and its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Params {
    /// HeaderDigest and DataDigest.
    pub digests: Digests,
    /// MaxConnections.
    pub max_connections: u16,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// Maximum length in bytes of a data segment that the initiator receives (its
    /// MaxRecvDataSegmentLength).
    pub max_send_data_segment: u32,
    /// Maximum length in bytes of a data segment that the target receives (the
    /// MaxRecvDataSegmentLength of the target).
    pub max_recv_data_segment: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// DefaultTime2Wait in seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain in seconds.
    pub time2retain: u16,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
}

impl Default for Params {
    /// Returns the parameters before any negotiation.
    fn default() -> Params {
        Params {
            digests: Digests::default(),
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_send_data_segment: 8192,
            max_recv_data_segment: 8192,
            max_burst: 262_144,
            first_burst: 65_536,
            time2wait: 2,
            time2retain: 20,
            max_outstanding_r2t: 1,
        }
    }
}

/// The values that the server wants: its side of every negotiation.
#[derive(Debug, Clone)]
pub(super) struct Wishes {
    header_digest: DigestPolicy,
    data_digest: DigestPolicy,
    max_connections: u16,
    pub(super) max_recv_data_segment: u32,
    max_burst: u32,
    first_burst: u32,
    max_outstanding_r2t: u16,
}

impl Wishes {
    pub(super) fn new(config: &IscsiConfig) -> Wishes {
        Wishes {
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            max_connections: config.max_connections_per_session,
            max_recv_data_segment: config.max_recv_data_segment,
            max_burst: config.max_burst,
            first_burst: config.first_burst,
            max_outstanding_r2t: config.max_outstanding_r2t,
        }
    }
}

/// The phase in which a key is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The login of the first connection of a session.
    Leading,
    /// The login of a further connection of a session. The keys of the session cannot change.
    Joining,
    /// The full feature phase (text requests).
    FullFeature,
}

/// The answer to an offered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The server answers with this value.
    Value(String),
    /// The key is a declaration, which the server does not answer.
    Declared,
}

impl Params {
    /// Negotiates one operational key that the initiator offers, and returns the answer. A key that
    /// is not admissible keeps its value, and the answer is Reject.
    pub(super) fn negotiate(
        &mut self,
        key: &str,
        value: &str,
        phase: Phase,
        discovery: bool,
        wishes: &Wishes,
    ) -> Answer {
        let session_wide = is_session_wide(key);
        let changeable = key == "MaxRecvDataSegmentLength" || !Params::is_known(key);
        if (phase == Phase::FullFeature && !changeable) || (phase == Phase::Joining && session_wide) {
            return Answer::Value(REJECT.into());
        }
        if discovery
            && session_wide
            && !matches!(key, "DefaultTime2Wait" | "DefaultTime2Retain")
            && is_operational(key)
        {
            return Answer::Value(IRRELEVANT.into());
        }
        self.operational(key, value, wishes).unwrap_or_else(|| Answer::Value(REJECT.into()))
    }

    /// Negotiates one key. Returns `None` if the value is not admissible.
    fn operational(&mut self, key: &str, value: &str, wishes: &Wishes) -> Option<Answer> {
        let value = match key {
            "HeaderDigest" => digest_choice(value, wishes.header_digest, &mut self.digests.header)?,
            "DataDigest" => digest_choice(value, wishes.data_digest, &mut self.digests.data)?,
            "MaxConnections" => least(value, 1..=65535, wishes.max_connections, &mut self.max_connections)?,
            "InitialR2T" => {
                // The result function is OR. The server needs no R2T before unsolicited data.
                self.initial_r2t = text::boolean(value)?;
                yes_no(self.initial_r2t).into()
            }
            "ImmediateData" => {
                // The result function is AND. The server accepts immediate data.
                self.immediate_data = text::boolean(value)?;
                yes_no(self.immediate_data).into()
            }
            "MaxRecvDataSegmentLength" => {
                self.max_send_data_segment = within(value, LENGTHS)?;
                return Some(Answer::Declared);
            }
            "MaxBurstLength" => least(value, LENGTHS, wishes.max_burst, &mut self.max_burst)?,
            "FirstBurstLength" => least(value, LENGTHS, wishes.first_burst, &mut self.first_burst)?,
            "DefaultTime2Wait" => {
                self.time2wait = within(value, 0..=3600)?; // the greater, and the server needs none
                self.time2wait.to_string()
            }
            // At error recovery level 0 the server keeps no state of a session after its
            // connections.
            "DefaultTime2Retain" => least(value, 0..=3600, 0, &mut self.time2retain)?,
            "MaxOutstandingR2T" => {
                least(value, 1..=65535, wishes.max_outstanding_r2t, &mut self.max_outstanding_r2t)?
            }
            // The result function is OR. The server requires data in order.
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                text::boolean(value)?;
                yes_no(true).into()
            }
            "ErrorRecoveryLevel" => {
                within::<u8>(value, 0..=2)?;
                "0".into()
            }
            "iSCSIProtocolLevel" => within::<u8>(value, 0..=31)?.min(1).to_string(),
            "TaskReporting" => value.split(',').find(|choice| *choice == "RFC3720")?.into(),
            // These keys are obsolete. RFC 7143, 13.25, demands these answers.
            "IFMarker" | "OFMarker" => {
                text::boolean(value)?;
                yes_no(false).into()
            }
            "IFMarkInt" | "OFMarkInt" => return None,
            _ => NOT_UNDERSTOOD.into(),
        };
        Some(Answer::Value(value))
    }

    /// Returns whether a key is an operational key of the standard.
    pub(super) fn is_known(key: &str) -> bool {
        let others = ["MaxRecvDataSegmentLength", "HeaderDigest", "DataDigest"];
        let obsolete = ["IFMarker", "OFMarker", "IFMarkInt", "OFMarkInt"];
        is_session_wide(key) || others.contains(&key) || obsolete.contains(&key)
    }

    /// Ends a negotiation. Fails if a required digest was not negotiated.
    pub(super) fn settle(&mut self, wishes: &Wishes) -> Result<(), &'static str> {
        let missing = |policy, on: bool| policy == DigestPolicy::Required && !on;
        if missing(wishes.header_digest, self.digests.header)
            || missing(wishes.data_digest, self.digests.data)
        {
            return Err("a digest is required");
        }
        // An initiator may offer a first burst that exceeds its own MaxBurstLength. The smaller
        // value applies.
        self.first_burst = self.first_burst.min(self.max_burst);
        Ok(())
    }

    /// Returns the keys of the session as text for people.
    pub(super) fn describe(&self) -> Vec<(&'static str, String)> {
        let digest = |on| if on { "CRC32C" } else { "None" }.to_owned();
        vec![
            ("HeaderDigest", digest(self.digests.header)),
            ("DataDigest", digest(self.digests.data)),
            ("MaxConnections", self.max_connections.to_string()),
            ("InitialR2T", yes_no(self.initial_r2t).into()),
            ("ImmediateData", yes_no(self.immediate_data).into()),
            ("MaxRecvDataSegmentLength", self.max_recv_data_segment.to_string()),
            ("InitiatorMaxRecvDataSegmentLength", self.max_send_data_segment.to_string()),
            ("MaxBurstLength", self.max_burst.to_string()),
            ("FirstBurstLength", self.first_burst.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("DefaultTime2Wait", self.time2wait.to_string()),
            ("DefaultTime2Retain", self.time2retain.to_string()),
            ("ErrorRecoveryLevel", "0".into()),
        ]
    }
}

/// Returns whether only the first login of a session may negotiate a key ("LO" in RFC 7143, 13).
fn is_session_wide(key: &str) -> bool {
    matches!(
        key,
        "MaxConnections"
            | "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "DefaultTime2Wait"
            | "DefaultTime2Retain"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "ErrorRecoveryLevel"
            | "TaskReporting"
            | "iSCSIProtocolLevel"
    )
}

/// Returns whether a session-wide key has no meaning in discovery sessions (13.2 and others:
/// "Irrelevant when SessionType=Discovery").
fn is_operational(key: &str) -> bool {
    !matches!(key, "ErrorRecoveryLevel" | "iSCSIProtocolLevel")
}

/// Parses a number. Returns `None` if it is not in the range.
fn within<N: TryFrom<u64> + PartialOrd>(value: &str, range: RangeInclusive<N>) -> Option<N> {
    N::try_from(text::number(value)?).ok().filter(|n| range.contains(n))
}

/// Negotiates the smaller one of the offered number and the number of the server.
fn least<N>(value: &str, range: RangeInclusive<N>, own: N, result: &mut N) -> Option<String>
where
    N: TryFrom<u64> + Ord + Copy + ToString,
{
    *result = within(value, range)?.min(own);
    Some(result.to_string())
}

/// Chooses the first offered digest that the policy of the server permits.
fn digest_choice(offer: &str, policy: DigestPolicy, on: &mut bool) -> Option<String> {
    let choice = offer.split(',').find(|choice| match *choice {
        "CRC32C" => policy != DigestPolicy::Refused,
        "None" => policy != DigestPolicy::Required,
        _ => false,
    })?;
    *on = choice == "CRC32C";
    Some(choice.into())
}
