//! The login phase (RFC 7143, 6.3 and 11.12 to 11.13), as a state machine that does no input or
//! output. A caller passes one request to [`Login::step`] and gets one response.

use super::access::{MAX_NAME, fold};
use super::auth::{Auth, Progress};
use super::params::{Answer, Params, Phase, Wishes};
use super::pdu::{Bhs, CONTINUE, FINAL, Numbers, opcode, response};
use super::refusal::{Refusal, Status};
use super::targets::{AuthPolicy, ChapUser, Denied, Grant, Initiator, Proof, Targets};
use super::text;
use crate::net::attempts::{Attempts, Who};
use std::collections::HashSet;
use std::net::SocketAddr;

/// Maximum length of the data segment of a login PDU. No other length is negotiated during the
/// login (13.12).
pub(super) const MAX_DATA: usize = 8192;

type Checked<T> = Result<T, Refusal>;

fn refuse<T>(status: Status, why: &'static str) -> Checked<T> {
    Err(Refusal(status, why))
}

/// Stages of the login (11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// The identity of an initiator, and the session and target that it logs in to.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) initiator: String,
    pub(super) alias: Option<String>,
    pub(super) isid: [u8; 6],
    /// TSIH of the session to join. Zero for a new session.
    pub(super) tsih: u16,
    pub(super) cid: u16,
    /// Name of the target. `None` in a discovery session.
    pub(super) target: Option<String>,
    /// CHAP_N of the proven account. `None` before the initiator has proven one.
    pub(super) user: Option<String>,
    /// Hash of the proven account and its secret, from `Secret::proof`. It is the same in all
    /// sessions with this account and secret.
    pub(super) proof: Option<[u8; 32]>,
    /// CmdSN of the first command.
    pub(super) cmd_sn: u32,
}

/// The next step of the caller after a request.
pub(super) enum Step {
    /// The caller sends this response and waits for the next request.
    Reply(Vec<u8>),
    /// The negotiation is complete. The caller makes or joins the session, and then calls
    /// [`Login::accept`] or [`Login::reject`] for the last response.
    Agreed,
    /// The caller sends this response and closes the connection.
    Refused(Vec<u8>, Refusal),
}

/// A login in progress.
pub(super) struct Login<'a> {
    targets: &'a dyn Targets,
    wishes: Wishes,
    peer: SocketAddr,
    local: SocketAddr,
    portal_group: u16,
    stage: Option<u8>,
    identity: Option<Identity>,
    /// Name that the initiator sent, before any check.
    claimed: Option<String>,
    /// Function that is called with the names of the initiator and the target, before the
    /// permission is requested.
    watch: &'a dyn Fn(&str, Option<&str>),
    auth: Auth,
    /// Limits how often a client may try secrets.
    attempts: Option<&'a Attempts>,
    /// The account that the initiator has proven.
    proven: Option<ChapUser>,
    /// TargetAlias. It is sent when the initiator has proven what it must prove.
    alias: Option<String>,
    params: Params,
    /// Keys that were negotiated. Each key may be negotiated only once, except the keys of CHAP.
    seen: HashSet<String>,
    /// Text of earlier requests that the current request continues.
    text: Vec<u8>,
    declared: bool,
    /// The last request, which the last response answers.
    request: Bhs,
    answer: Vec<u8>,
    numbers: Numbers,
}

impl<'a> Login<'a> {
    pub(super) fn new(
        targets: &'a dyn Targets,
        wishes: Wishes,
        (peer, local): (SocketAddr, SocketAddr),
        portal_group: u16,
        watch: &'a dyn Fn(&str, Option<&str>),
    ) -> Login<'a> {
        Login {
            targets,
            wishes,
            peer,
            local,
            portal_group,
            stage: None,
            identity: None,
            claimed: None,
            watch,
            auth: Auth::new(AuthPolicy::None),
            attempts: None,
            proven: None,
            alias: None,
            params: Params::default(),
            seen: HashSet::new(),
            text: Vec::new(),
            declared: false,
            request: Bhs::new(opcode::LOGIN, 0),
            answer: Vec::new(),
            numbers: Numbers::default(),
        }
    }

    /// Counts the CHAP response of this login among the attempts of its source.
    pub(super) fn with_attempts(self, attempts: &'a Attempts) -> Login<'a> {
        Login { attempts: Some(attempts), ..self }
    }

    /// Handles one request.
    pub(super) fn step(&mut self, request: &Bhs, data: &[u8]) -> Step {
        let first = self.stage.is_none();
        if first {
            self.numbers.stat_sn = request.exp_stat_sn();
            self.numbers.exp_cmd_sn = request.cmd_sn();
            self.numbers.max_cmd_sn = request.cmd_sn();
        }
        let last = std::mem::replace(&mut self.request, *request);
        self.answer.clear();
        let result = match self.check(request, (!first).then_some(&last)) {
            Ok(()) => self.take(request, data),
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(Some(flags)) if flags & FINAL != 0 && flags & 3 == FULL_FEATURE => Step::Agreed,
            Ok(Some(flags)) => {
                if flags & FINAL != 0 {
                    self.stage = Some(flags & 3);
                }
                Step::Reply(self.respond(flags, Status::Success, 0))
            }
            Ok(None) => Step::Reply(self.respond(request.u8(1) & 0x0c, Status::Success, 0)),
            Err(refusal) => Step::Refused(self.reject(refusal), refusal),
        }
    }

    /// Checks whether a request may come at this point of the login.
    fn check(&mut self, request: &Bhs, last: Option<&Bhs>) -> Checked<()> {
        if request.opcode() != opcode::LOGIN || !request.immediate() {
            return refuse(Status::InvalidDuringLogin, "a PDU that is not a login request");
        }
        if request.u8(3) > 0 {
            return refuse(Status::UnsupportedVersion, "the initiator supports later versions only");
        }
        let flags = request.u8(1);
        let (csg, nsg) = (flags >> 2 & 3, flags & 3);
        if csg != *self.stage.get_or_insert(csg) || csg > OPERATIONAL {
            return refuse(Status::InitiatorError, "a request of another stage");
        }
        if flags & FINAL != 0 && (nsg <= csg || nsg == 2 || flags & CONTINUE != 0) {
            return refuse(Status::InitiatorError, "a transit to a stage that cannot follow");
        }
        // ISID, TSIH, task tag and CID are the same in all requests of one login.
        if last.is_some_and(|last| last.0[8..22] != request.0[8..22]) {
            return refuse(Status::InitiatorError, "the identifiers changed during the login");
        }
        Ok(())
    }

    /// Handles the text of a request. Returns `None` while more text follows, and otherwise the
    /// flags of the response.
    fn take(&mut self, request: &Bhs, data: &[u8]) -> Checked<Option<u8>> {
        if self.text.len() + data.len() > text::MAX_TEXT {
            return refuse(Status::OutOfResources, "the text is too long");
        }
        self.text.extend_from_slice(data);
        if request.u8(1) & CONTINUE != 0 {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.text);
        let Ok(pairs) = text::parse(&whole) else {
            return refuse(Status::InitiatorError, "malformed text");
        };
        let stage = self.stage.unwrap_or(SECURITY);
        if self.identity.is_none() {
            self.identify(request, &pairs, stage)?;
        }
        let mut security = Vec::new();
        for (key, value) in pairs {
            if !self.seen.insert(key.to_owned()) && !key.starts_with("CHAP_") {
                return refuse(Status::InitiatorError, "a key is negotiated twice");
            }
            if self.seen.len() > text::MAX_KEYS {
                return refuse(Status::OutOfResources, "too many keys");
            }
            match key {
                "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => {}
                "AuthMethod" | "CHAP_A" | "CHAP_N" | "CHAP_R" | "CHAP_I" | "CHAP_C" => {
                    security.push((key, value))
                }
                _ => self.negotiate(key, value, stage)?,
            }
        }
        let flags = self.conclude(request, &security, stage)?;
        if self.answer.len() > MAX_DATA {
            return refuse(Status::InitiatorError, "too many keys to answer");
        }
        Ok(Some(flags))
    }

    /// Authenticates the initiator, declares the parameters of the server, and decides about the
    /// stage.
    fn conclude(&mut self, request: &Bhs, security: &[(&str, &str)], stage: u8) -> Checked<u8> {
        let wants = request.is_final();
        if stage == SECURITY {
            match self.prove(security, wants)? {
                Progress::Going => return Ok(SECURITY << 2),
                Progress::Proven(account) => {
                    if let Some(identity) = &mut self.identity {
                        identity.proof = account.as_ref().map(|account| account.secret.proof(&account.name));
                        identity.user = account.as_ref().map(|account| account.name.clone());
                    }
                    self.proven = account;
                    self.tell_alias();
                }
            }
        } else if !security.is_empty() {
            return refuse(Status::InitiatorError, "security keys in the operational stage");
        } else if !self.declared {
            self.declared = true;
            self.params.max_recv_data_segment = self.wishes.max_recv_data_segment;
            let own = self.wishes.max_recv_data_segment.to_string();
            text::put(&mut self.answer, "MaxRecvDataSegmentLength", &own);
        }
        if !wants {
            return Ok(stage << 2);
        }
        let nsg = request.u8(1) & 3;
        if nsg == FULL_FEATURE {
            self.params.settle(&self.wishes).map_err(|why| Refusal(Status::InitiatorError, why))?;
        }
        Ok(FINAL | stage << 2 | nsg)
    }

    /// Carries out the next step of authentication. A response to the challenge is checked only if
    /// the source has not sent too many wrong ones.
    fn prove(&mut self, security: &[(&str, &str)], wants: bool) -> Checked<Progress> {
        let attempt = match (self.attempts, &self.identity, self.auth.claimed(security)) {
            (Some(attempts), Some(Identity { initiator, .. }), Some(account)) => {
                let who = Who { address: self.peer.ip(), initiator, account };
                let Some(attempt) = attempts.begin(who) else {
                    return refuse(Status::ServiceUnavailable, "this address sent too many wrong secrets");
                };
                Some((attempts, attempt))
            }
            _ => None,
        };
        let progress = self.auth.step(security, wants, &mut self.answer)?;
        attempt.inspect(|(attempts, attempt)| attempts.succeeded(attempt));
        Ok(progress)
    }

    /// Reads from the first complete text who the initiator is and what it requests.
    fn identify(&mut self, request: &Bhs, pairs: &[(&str, &str)], stage: u8) -> Checked<()> {
        let find = |key| pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let Some(name) = find("InitiatorName") else {
            return refuse(Status::MissingParameter, "no InitiatorName");
        };
        self.claimed = Some(name[..name.floor_char_boundary(MAX_NAME)].to_owned());
        if !text::is_name(name) {
            return refuse(Status::InitiatorError, "InitiatorName is not a printable iSCSI name");
        }
        // All forms of a name are one name (RFC 3722): for the session key, for the I_T nexus, and
        // for access rules.
        let name = &*fold(name);
        let discovery = match find("SessionType") {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return refuse(Status::SessionTypeNotSupported, "an unknown SessionType"),
        };
        let target = match find("TargetName") {
            None if !discovery => return refuse(Status::MissingParameter, "no TargetName"),
            Some(target) if !discovery => Some(fold(target)),
            _ => None,
        };
        let (peer, local, portal_group) = (self.peer, self.local, self.portal_group);
        let who = Initiator { name, peer, local, portal_group, proof: Proof::Pending };
        (self.watch)(name, target.as_deref());
        let policy = match &target {
            None => self.targets.discovery_auth(&who),
            Some(target) => {
                let grant = self.targets.login(target, &who).map_err(denied)?;
                // Sessions are found by the name of their target when they are ended or restricted.
                // So a target has exactly one name, without short forms.
                if grant.name != *target {
                    return refuse(Status::NotFound, "TargetName is not the target's iSCSI name");
                }
                let policy = grant.auth.clone();
                self.alias = grant.alias.filter(|alias| alias.len() <= 255);
                policy
            }
        };
        if target.is_some() {
            text::put(&mut self.answer, "TargetPortalGroupTag", &self.portal_group.to_string());
        }
        self.auth = Auth::new(policy);
        if !self.auth.is_required() {
            self.tell_alias();
        }
        if stage != SECURITY && self.auth.is_required() {
            return refuse(Status::AuthenticationFailure, "security negotiation was skipped");
        }
        let mut isid = [0; 6];
        isid.copy_from_slice(&request.0[8..14]);
        self.identity = Some(Identity {
            initiator: name.to_owned(),
            alias: find("InitiatorAlias").filter(|alias| alias.len() <= 255).map(str::to_owned),
            isid,
            tsih: request.u16(14),
            cid: request.u16(20),
            target,
            user: None,
            proof: None,
            cmd_sn: request.cmd_sn(),
        });
        Ok(())
    }

    fn tell_alias(&mut self) {
        if let Some(alias) = self.alias.take() {
            text::put(&mut self.answer, "TargetAlias", &alias);
        }
    }

    fn negotiate(&mut self, key: &str, value: &str, stage: u8) -> Checked<()> {
        let phase = if self.request.u16(14) == 0 { Phase::Leading } else { Phase::Joining };
        let discovery = self.identity.as_ref().is_some_and(|i| i.target.is_none());
        let answer = match stage {
            SECURITY if Params::is_known(key) => Answer::Value(text::REJECT.into()),
            _ => self.params.negotiate(key, value, phase, discovery, &self.wishes),
        };
        if let Answer::Value(value) = answer {
            text::put(&mut self.answer, key, &value);
        }
        Ok(())
    }

    /// Makes a response with the answers that were collected.
    fn respond(&mut self, flags: u8, status: Status, tsih: u16) -> Vec<u8> {
        let mut bhs = response(opcode::LOGIN_RESPONSE, flags, self.request.itt());
        bhs.put(8, &self.request.0[8..14]);
        let tsih = if tsih == 0 { self.request.u16(14) } else { tsih };
        bhs.put_u16(14, tsih).put_u16(36, status as u16).set_data_len(self.answer.len());
        let mut pdu = bhs.0.to_vec();
        pdu.append(&mut self.answer);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        super::pdu::stamp(&mut pdu, &mut self.numbers, Default::default());
        pdu
    }

    /// Returns StatSN of the first response after the last login response.
    pub(super) fn next_stat_sn(&self) -> u32 {
        self.numbers.stat_sn.wrapping_add(1)
    }

    /// Makes the last response, after a session was made or joined.
    pub(super) fn accept(&mut self, tsih: u16, exp_cmd_sn: u32, max_cmd_sn: u32) -> Vec<u8> {
        self.numbers.exp_cmd_sn = exp_cmd_sn;
        self.numbers.max_cmd_sn = max_cmd_sn;
        let flags = self.request.u8(1) & 0x8f;
        self.respond(flags, Status::Success, tsih)
    }

    /// Makes the last response, which refuses the login.
    pub(super) fn reject(&mut self, refusal: Refusal) -> Vec<u8> {
        self.answer.clear();
        self.respond(self.request.u8(1) & 0x0c, refusal.0, 0)
    }

    /// Returns the result of the negotiation. The function requests the permission again, and
    /// checks the proven account again. A login may take a while, and rules and accounts may change
    /// meanwhile.
    pub(super) fn agreement(&mut self) -> Checked<(Identity, Option<Grant>, Params)> {
        let Some(identity) = self.identity.clone() else {
            return refuse(Status::MissingParameter, "no parameters were negotiated");
        };
        let (name, proof) = (&*identity.initiator, Proof::Given(identity.user.as_deref()));
        let (peer, local, portal_group) = (self.peer, self.local, self.portal_group);
        let who = Initiator { name, peer, local, portal_group, proof };
        let (grant, policy) = match &identity.target {
            None => (None, self.targets.discovery_auth(&who)),
            Some(target) => {
                let grant = self.targets.login(target, &who).map_err(denied)?;
                let policy = grant.auth.clone();
                (Some(grant), policy)
            }
        };
        if let AuthPolicy::Chap { users, .. } = policy
            && !self.proven.as_ref().is_some_and(|proven| users.contains(proven))
        {
            return refuse(Status::AuthenticationFailure, "accounts changed during the login");
        }
        Ok((identity, grant, self.params.clone()))
    }

    /// Returns the name that the initiator sent, even if it may not log in or the name is
    /// malformed. A name that is too long is cut.
    pub(super) fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }
}

pub(super) fn denied(why: Denied) -> Refusal {
    match why {
        Denied::NotFound => Refusal(Status::NotFound, "no such target"),
        Denied::Forbidden => Refusal(Status::AuthorizationFailure, "no rule allows the initiator"),
        Denied::Removed => Refusal(Status::TargetRemoved, "the target was removed"),
        Denied::Unavailable => Refusal(Status::ServiceUnavailable, "the target is not available"),
        Denied::TooMany => Refusal(Status::OutOfResources, "too many targets are open"),
    }
}
