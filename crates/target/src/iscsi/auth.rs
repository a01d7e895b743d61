//! The security stage of a login: the key AuthMethod and the messages of CHAP (RFC 7143, 12.1).

use super::chap::{Algorithm, Challenge};
use super::refusal::{Refusal, Status};
use super::targets::{AuthPolicy, ChapUser};
use super::text;

/// Maximum length of CHAP_N, and of CHAP_R and CHAP_C (12.1.3: a challenge has at most 1024 bytes).
const MAX_NAME: usize = 255;
const MAX_BINARY: usize = 1024;

/// Progress of the security stage after a request.
pub(super) enum Progress {
    /// The initiator must send another request.
    Going,
    /// The initiator has proven everything that is required. The value is the account, if one was
    /// required.
    Proven(Option<ChapUser>),
}

/// The authentication of one login.
pub(super) struct Auth {
    policy: AuthPolicy,
    state: State,
}

enum State {
    /// AuthMethod was not negotiated yet.
    Start,
    /// CHAP was negotiated. CHAP_A comes next.
    Chap,
    /// The challenge was sent. CHAP_N and CHAP_R come next.
    Challenged(Challenge),
    Proven(Option<ChapUser>),
}

fn fail<T>(why: &'static str) -> Result<T, Refusal> {
    Err(Refusal(Status::AuthenticationFailure, why))
}

impl Auth {
    pub(super) fn new(policy: AuthPolicy) -> Auth {
        Auth { policy, state: State::Start }
    }

    pub(super) fn is_required(&self) -> bool {
        matches!(self.policy, AuthPolicy::Chap { .. })
    }

    /// Returns the name of the account if these keys have a response to the challenge.
    pub(super) fn claimed<'k>(&self, keys: &[(&str, &'k str)]) -> Option<&'k str> {
        let find = |key| keys.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let name = find("CHAP_N").filter(|name| name.len() <= MAX_NAME)?;
        (matches!(self.state, State::Challenged(_)) && find("CHAP_R").is_some()).then_some(name)
    }

    /// Handles the security keys of one request, and answers them. If `leave` is true, the
    /// initiator requests to leave the stage.
    pub(super) fn step(
        &mut self,
        keys: &[(&str, &str)],
        leave: bool,
        answer: &mut Vec<u8>,
    ) -> Result<Progress, Refusal> {
        let find = |key| keys.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        for (n, (key, _)) in keys.iter().enumerate() {
            if keys[..n].iter().any(|(k, _)| k == key) {
                return fail("a security key was sent twice");
            }
        }
        self.state = match std::mem::replace(&mut self.state, State::Start) {
            State::Start => match find("AuthMethod") {
                Some(offer) => self.choose(offer, keys.len() > 1, answer)?,
                None if !keys.is_empty() => return fail("CHAP without AuthMethod"),
                None if self.is_required() && leave => return fail("no AuthMethod was offered"),
                None if self.is_required() => State::Start,
                None => State::Proven(None),
            },
            State::Chap => challenge(find("CHAP_A"), keys.len() > 1, answer)?,
            State::Challenged(challenge) => self.prove(&challenge, find, answer)?,
            State::Proven(user) if keys.is_empty() => State::Proven(user),
            State::Proven(_) => return fail("security keys after the end of security negotiation"),
        };
        match &self.state {
            State::Proven(user) => Ok(Progress::Proven(user.clone())),
            _ => Ok(Progress::Going),
        }
    }

    /// Chooses the method. The initiator cannot negotiate away what the policy requires.
    fn choose(&self, offer: &str, more: bool, answer: &mut Vec<u8>) -> Result<State, Refusal> {
        let wanted = if self.is_required() { "CHAP" } else { "None" };
        if more {
            return fail("CHAP keys before AuthMethod=CHAP was negotiated");
        }
        if !offer.split(',').any(|method| method == wanted) {
            return fail("no acceptable AuthMethod was offered");
        }
        text::put(answer, "AuthMethod", wanted);
        Ok(if self.is_required() { State::Chap } else { State::Proven(None) })
    }

    /// Checks the response, and answers a challenge of the initiator.
    fn prove<'k>(
        &self,
        challenge: &Challenge,
        find: impl Fn(&'static str) -> Option<&'k str>,
        answer: &mut Vec<u8>,
    ) -> Result<State, Refusal> {
        let AuthPolicy::Chap { users, mutual } = &self.policy else {
            return fail("CHAP is not required");
        };
        let (Some(name), Some(response)) = (find("CHAP_N"), find("CHAP_R")) else {
            return fail("CHAP_N or CHAP_R is missing");
        };
        let Some(response) = text::binary(response, MAX_BINARY).filter(|_| name.len() <= MAX_NAME) else {
            return fail("CHAP_N or CHAP_R is malformed");
        };
        let user = users.iter().find(|user| user.name == name);
        let user = user.filter(|user| challenge.answered_by(&user.secret, &response));
        let Some(user) = user else {
            return fail("CHAP: the name or the secret is wrong");
        };
        match (find("CHAP_I"), find("CHAP_C")) {
            (None, None) => {}
            (Some(identifier), Some(theirs)) => {
                let own = mutual.as_ref().filter(|own| users.iter().all(|user| user.secret != own.secret));
                let Some(own) = own else {
                    return fail("the initiator requires mutual CHAP, and the target has no secret");
                };
                prove_ourselves(challenge, own, identifier, theirs, answer)?;
            }
            _ => return fail("CHAP_I or CHAP_C is missing"),
        }
        Ok(State::Proven(Some(user.clone())))
    }
}

/// Chooses the algorithm and challenges the initiator.
fn challenge(offer: Option<&str>, more: bool, answer: &mut Vec<u8>) -> Result<State, Refusal> {
    let Some(offer) = offer.filter(|_| !more) else {
        return fail("CHAP_A is missing, or other keys came with it");
    };
    let known = |choice| text::number(choice).and_then(Algorithm::from_number);
    let Some(algorithm) = offer.split(',').find_map(known) else {
        return fail("no acceptable CHAP_A was offered");
    };
    let Ok(challenge) = Challenge::new(algorithm) else {
        return Err(Refusal(Status::TargetError, "the system has no random numbers"));
    };
    text::put(answer, "CHAP_A", &(algorithm as u8).to_string());
    text::put(answer, "CHAP_I", &challenge.identifier().to_string());
    text::put(answer, "CHAP_C", &text::to_hex(challenge.bytes()));
    Ok(State::Challenged(challenge))
}

/// Answers the challenge of the initiator, unless it is the challenge of the target (12.1.4).
fn prove_ourselves(
    challenge: &Challenge,
    own: &ChapUser,
    identifier: &str,
    theirs: &str,
    answer: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let identifier = text::number(identifier).and_then(|n| u8::try_from(n).ok());
    let (Some(identifier), Some(theirs)) = (identifier, text::binary(theirs, MAX_BINARY)) else {
        return fail("CHAP_I or CHAP_C is malformed");
    };
    if challenge.is_reflected_by(&theirs) {
        return fail("CHAP: the initiator reflects the target's challenge");
    }
    let response = challenge.algorithm().response(identifier, &own.secret, &theirs);
    text::put(answer, "CHAP_N", &own.name);
    text::put(answer, "CHAP_R", &text::to_hex(&response));
    Ok(())
}
