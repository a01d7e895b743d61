//! Fixed newstyle negotiation, also called option haggling, as a state machine without input and
//! output.
//!
//! [`Negotiator`] has no socket. Its driver sends [`GREETING`], and passes received bytes to
//! [`Negotiator::step`]. The driver sends the output of each step. It stops when a step leads to
//! TLS, to the transmission phase, or to the end of the connection.

use super::codec::export_flag;
use super::meta_context::{
    ALLOCATION_ID, BASE_ALLOCATION, CHANGED_SINCE, Context, DAMAGED, DAMAGED_ID, MAX_COMPARED, MetaRequest,
};
pub use super::option_data::{MAX_STRING, OptionError, rep};
use super::option_data::{Reader, string};
use crate::{ExportEntry, Exports};
use hindcast_engine::device::{BlockDevice, DeviceInfo};
use std::sync::Arc;

/// The first message of the server: `NBDMAGIC`, `IHAVEOPT`, and the handshake flags FIXED_NEWSTYLE
/// and NO_ZEROES.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";
/// Magic number at the start of every option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Magic number at the start of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Length of an option's header in bytes.
pub const OPTION_HEADER_LEN: usize = 16;
/// Length of an option reply's header in bytes.
pub const OPTION_REPLY_LEN: usize = 20;

/// Maximum length of option data that the server decodes, in bytes.
const MAX_OPTION: u32 = 32 << 10;
/// Maximum length of option data that the server skips, in bytes. It answers such an option with
/// ERR_TOO_BIG. It closes the connection if option data is longer.
const MAX_SKIPPED_OPTION: u32 = 1 << 20;
/// Maximum number of snapshots in the reply to LIST_META_CONTEXT without queries. The reply has the
/// newest snapshots. Tools that list exports send this option for each export. Each snapshot is an
/// export too, and its volume may have thousands of them.
const MAX_UNASKED_SNAPSHOTS: usize = 64;
/// Length of one part of the reply to LIST, in bytes. The number of exports has no limit, and a
/// client may read no replies. A list is therefore encoded part by part.
pub(super) const PART: usize = 64 << 10;
/// Minimum block size in bytes that every client expects.
const DEFAULT_BLOCK: u32 = 512;

const CLIENT_FIXED_NEWSTYLE: u32 = 1;
const CLIENT_NO_ZEROES: u32 = 2;

/// Option numbers.
#[allow(missing_docs)]
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Information types of INFO and GO.
#[allow(missing_docs)]
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Appends one option reply to `out`. Its data is `parts`, one after the other.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, reply: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Returns the transmission flags of an export. Those of a read-only export have no flag that is
/// about writes.
pub fn transmission_flags(device: &DeviceInfo, structured: bool) -> u16 {
    use export_flag::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE;
    flags |= match device.read_only {
        true => READ_ONLY,
        false => SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO,
    };
    if structured { flags | SEND_DF } else { flags }
}

/// The rules of the server for a negotiation. They do not change during a connection.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Whether the server accepts STARTTLS.
    pub tls_available: bool,
    /// Whether the server refuses all options but STARTTLS and ABORT until the client uses TLS.
    pub tls_required: bool,
    /// Maximum length of a READ or WRITE in bytes. The server reports it as the maximum block size.
    pub max_request: u32,
}

/// The result of a negotiation that leads to the transmission phase.
pub struct Negotiated {
    /// The name of the export, as the client sent it.
    pub export: String,
    /// The device behind the export.
    pub device: Arc<dyn BlockDevice>,
    /// Whether the client negotiated structured replies.
    pub structured: bool,
    /// The selected metadata contexts, which BLOCK_STATUS reports.
    pub contexts: Vec<Context>,
}

/// The result of a step. In every case the driver first sends the output of the step.
pub enum Step {
    /// The next step needs more bytes.
    More,
    /// The step handled one message. The input may contain another one.
    Next,
    /// The step appended a part of a reply. The next step continues the reply and needs no bytes.
    Part,
    /// The next bytes are a TLS handshake. TLS does not protect bytes that were already received
    /// behind this option.
    StartTls,
    /// The transmission phase begins: the next bytes are requests.
    Transmit(Negotiated),
    /// The driver closes the connection.
    Close,
}

enum Phase {
    ClientFlags,
    Options,
    /// The data of an option is too long. The negotiator skips the rest, `left` bytes, and then
    /// sends an error reply.
    Skip {
        option: u32,
        left: usize,
    },
}

/// The negotiation of one connection.
pub struct Negotiator<'a> {
    exports: &'a dyn Exports,
    policy: Policy,
    phase: Phase,
    fixed: bool,
    no_zeroes: bool,
    secure: bool,
    shutting_down: bool,
    structured: bool,
    /// The name of an export, and the metadata contexts that the client selected for it.
    selected: Option<(String, Vec<Context>)>,
    /// The name of the export whose block sizes the client requested last.
    sized: Option<String>,
    /// The exports that LIST reports, and the index of the next one. `None` outside of a LIST.
    listing: Option<(Arc<[ExportEntry]>, usize)>,
}

impl<'a> Negotiator<'a> {
    /// Makes a negotiation that expects the client flags, which follow the greeting.
    pub fn new(exports: &'a dyn Exports, policy: Policy) -> Negotiator<'a> {
        Negotiator {
            exports,
            policy,
            phase: Phase::ClientFlags,
            fixed: false,
            no_zeroes: false,
            secure: false,
            shutting_down: false,
            structured: false,
            selected: None,
            sized: None,
            listing: None,
        }
    }

    /// Continues the negotiation over TLS, with the exports that the client sees there. Everything
    /// that was negotiated without TLS is reset.
    pub fn secured(&mut self, exports: &'a dyn Exports) {
        self.exports = exports;
        self.secure = true;
        self.structured = false;
        self.selected = None;
        self.sized = None;
    }

    /// Refuses every option but ABORT from now on, because the server shuts down.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Handles at most one message at the start of `input`, and appends the reply to `out`. Returns
    /// the number of bytes that the message took from `input`.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        if self.listing.is_some() {
            return (0, self.list(out));
        }
        match self.phase {
            Phase::ClientFlags => self.client_flags(input),
            Phase::Options => self.option(input, out),
            Phase::Skip { option, left } => {
                let skipped = left.min(input.len());
                if skipped < left {
                    self.phase = Phase::Skip { option, left: left - skipped };
                    return (skipped, Step::More);
                }
                self.phase = Phase::Options;
                put_option_reply(out, option, rep::ERR_TOO_BIG, &[b"the option's data is too long"]);
                (skipped, Step::Next)
            }
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(&bytes) = input.first_chunk::<4>() else {
            return (0, Step::More);
        };
        let flags = u32::from_be_bytes(bytes);
        if flags & !(CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES) != 0 {
            return (4, Step::Close);
        }
        self.fixed = flags & CLIENT_FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & CLIENT_NO_ZEROES != 0;
        self.phase = Phase::Options;
        (4, Step::Next)
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let Some(header) = input.first_chunk::<OPTION_HEADER_LEN>() else {
            return (0, Step::More);
        };
        let mut reader = Reader::new(header);
        let (Ok(magic_high), Ok(magic_low), Ok(option), Ok(len)) =
            (reader.u32(), reader.u32(), reader.u32(), reader.u32())
        else {
            return (0, Step::Close);
        };
        if (u64::from(magic_high) << 32) | u64::from(magic_low) != OPTION_MAGIC {
            return (0, Step::Close);
        }
        let data = &input[OPTION_HEADER_LEN..];
        if len > MAX_OPTION {
            // An error reply to EXPORT_NAME is not possible.
            if len > MAX_SKIPPED_OPTION || option == opt::EXPORT_NAME {
                return (0, Step::Close);
            }
            self.phase = Phase::Skip { option, left: len as usize };
            return (OPTION_HEADER_LEN, Step::Next);
        }
        let Some(data) = data.get(..len as usize) else {
            return (0, Step::More);
        };
        (OPTION_HEADER_LEN + data.len(), self.answer(option, data, out))
    }

    /// Answers one option whose data is complete.
    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        if option == opt::ABORT {
            put_option_reply(out, option, rep::ACK, &[]);
            return Step::Close;
        }
        let plain_but_must_not_be = self.policy.tls_required && !self.secure;
        if option == opt::EXPORT_NAME {
            return match plain_but_must_not_be || self.shutting_down {
                true => Step::Close,
                false => self.export_name(data, out),
            };
        }
        // The protocol allows no mention of TLS to a client without FIXED_NEWSTYLE. A server that
        // requires TLS has no other reply.
        if plain_but_must_not_be && !self.fixed {
            return Step::Close;
        }
        let result = if self.shutting_down {
            Err(OptionError::new(rep::ERR_SHUTDOWN, "the server is shutting down"))
        } else if plain_but_must_not_be && option != opt::STARTTLS {
            Err(OptionError::new(rep::ERR_TLS_REQD, "this server requires TLS"))
        } else {
            self.answer_fixed(option, data, out)
        };
        match result {
            // The reply has more parts.
            Ok(Step::Part) => self.list(out),
            Ok(step) => {
                put_option_reply(out, option, rep::ACK, &[]);
                step
            }
            Err(OptionError { reply, message }) => {
                let end = message.floor_char_boundary(MAX_STRING);
                put_option_reply(out, option, reply, &[&message.as_bytes()[..end]]);
                Step::Next
            }
        }
    }

    /// Handles an option that is answered with option replies. The caller appends the ACK after
    /// success.
    fn answer_fixed(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, OptionError> {
        match option {
            opt::LIST => {
                Reader::new(data).end()?;
                self.listing = Some((self.exports.listed(), 0));
                Ok(Step::Part)
            }
            opt::STARTTLS => {
                Reader::new(data).end()?;
                self.start_tls()
            }
            opt::STRUCTURED_REPLY => {
                Reader::new(data).end()?;
                self.structured = true;
                Ok(Step::Next)
            }
            opt::INFO | opt::GO => self.info(option, data, out),
            opt::LIST_META_CONTEXT => self.list_meta_context(data, out),
            opt::SET_META_CONTEXT => self.set_meta_context(data, out),
            _ => Err(OptionError::new(rep::ERR_UNSUP, "unknown option")),
        }
    }

    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Ok(name) = string(data) else {
            return Step::Close;
        };
        let Ok(device) = self.exports.open(name) else {
            return Step::Close;
        };
        let info = device.info();
        if !self.may_use(name, info.block_size) {
            return Step::Close; // there is no other answer to this option
        }
        out.extend_from_slice(&info.size.to_be_bytes());
        out.extend_from_slice(&transmission_flags(&info, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Step::Transmit(self.negotiated(name, device))
    }

    /// Returns whether the client may use an export with blocks of `block_size` bytes. If the
    /// blocks are larger than [`DEFAULT_BLOCK`], the client must have requested the block sizes.
    /// Otherwise the server would refuse its unaligned requests later, and the client would not
    /// expect that.
    fn may_use(&self, name: &str, block_size: u32) -> bool {
        block_size <= DEFAULT_BLOCK || self.sized.as_deref() == Some(name)
    }

    fn negotiated(&self, name: &str, device: Arc<dyn BlockDevice>) -> Negotiated {
        let selected = self.selected.as_ref().filter(|(export, _)| self.structured && export == name);
        let mut contexts = selected.map(|(_, contexts)| contexts.clone()).unwrap_or_default();
        // The name may mean another state now than when the client selected the contexts.
        let uuid = device.info().uuid;
        contexts.retain(|context| match context {
            Context::Allocation | Context::Damaged => true,
            Context::Changes(_, changes) => changes.of() == uuid,
        });
        Negotiated { export: name.to_owned(), device, structured: self.structured, contexts }
    }

    /// Appends the next part of the reply to LIST.
    fn list(&mut self, out: &mut Vec<u8>) -> Step {
        if self.shutting_down {
            self.listing = None;
            put_option_reply(out, opt::LIST, rep::ERR_SHUTDOWN, &[b"the server is shutting down"]);
            return Step::Next;
        }
        let Some((entries, next)) = &mut self.listing else { return Step::Next };
        let full = out.len() + PART;
        while let Some(entry) = entries.get(*next) {
            if out.len() >= full {
                return Step::Part;
            }
            *next += 1;
            if string(entry.name.as_bytes()).is_err() {
                continue; // no client could ask for it
            }
            let name_len = u32::try_from(entry.name.len()).unwrap_or(0).to_be_bytes();
            let description = &entry.description[..entry.description.floor_char_boundary(MAX_STRING)];
            let parts: [&[u8]; 3] = [&name_len, entry.name.as_bytes(), description.as_bytes()];
            put_option_reply(out, opt::LIST, rep::SERVER, &parts);
        }
        self.listing = None;
        put_option_reply(out, opt::LIST, rep::ACK, &[]);
        Step::Next
    }

    fn start_tls(&self) -> Result<Step, OptionError> {
        if self.secure {
            return Err(OptionError::new(rep::ERR_INVALID, "TLS is already in use"));
        }
        if !self.policy.tls_available || !self.fixed {
            return Err(OptionError::new(rep::ERR_POLICY, "TLS is not configured"));
        }
        Ok(Step::StartTls)
    }

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, OptionError> {
        let mut reader = Reader::new(data);
        let name = reader.string()?;
        let count = reader.u16()?;
        let wanted = (0..count).map(|_| reader.u16()).collect::<Result<Vec<u16>, _>>()?;
        reader.end()?;
        let device = self.exports.open(name).map_err(|e| OptionError::open(&e))?;
        let shape = device.info();

        let mut put = |kind: u16, parts: [&[u8]; 3]| {
            put_option_reply(out, option, rep::INFO, &[&kind.to_be_bytes(), parts[0], parts[1], parts[2]]);
        };
        let flags = transmission_flags(&shape, self.structured).to_be_bytes();
        put(info::EXPORT, [&shape.size.to_be_bytes(), &flags, &[]]);
        if wanted.contains(&info::NAME) {
            put(info::NAME, [self.exports.canonical(name).as_bytes(), &[], &[]]);
        }
        if wanted.contains(&info::DESCRIPTION)
            && let Some(text) = self.exports.describe(name)
        {
            put(info::DESCRIPTION, [&text.as_bytes()[..text.floor_char_boundary(MAX_STRING)], &[], &[]]);
        }
        // The server sends the block sizes also to a client that did not request them, because it
        // enforces them.
        let preferred = shape.preferred_size.clamp(shape.block_size.max(512), self.policy.max_request);
        put(
            info::BLOCK_SIZE,
            [
                &shape.block_size.to_be_bytes(),
                &preferred.to_be_bytes(),
                &self.policy.max_request.to_be_bytes(),
            ],
        );
        if wanted.contains(&info::BLOCK_SIZE) {
            self.sized = Some(name.to_owned());
        }
        if !self.may_use(name, shape.block_size) {
            let text = format!(
                "the blocks of this export have {} bytes: the client must request NBD_INFO_BLOCK_SIZE",
                shape.block_size
            );
            return Err(OptionError::new(rep::ERR_BLOCK_SIZE_REQD, text));
        }
        Ok(match option {
            opt::GO => Step::Transmit(self.negotiated(name, device)),
            _ => Step::Next,
        })
    }

    /// Decodes the data of a metadata context option. Fails if structured replies were not
    /// negotiated, or if the export can't be opened.
    fn meta_request<'d>(&self, data: &'d [u8]) -> Result<MetaRequest<'d>, OptionError> {
        if !self.structured {
            return Err(OptionError::new(rep::ERR_INVALID, "structured replies must be negotiated first"));
        }
        let request = MetaRequest::decode(data)?;
        self.exports.open(request.export).map_err(|e| OptionError::open(&e))?;
        Ok(request)
    }

    fn list_meta_context(&self, data: &[u8], out: &mut Vec<u8>) -> Result<Step, OptionError> {
        let request = self.meta_request(data)?;
        let mut put = |name: &str| {
            let parts: [&[u8]; 2] = [&0u32.to_be_bytes(), name.as_bytes()];
            put_option_reply(out, opt::LIST_META_CONTEXT, rep::META_CONTEXT, &parts);
        };
        if request.lists_allocation() {
            put(BASE_ALLOCATION);
        }
        if request.lists_damage() {
            put(DAMAGED);
        }
        let (all, named) = (request.lists_snapshots(), request.compared());
        if !all && named.is_empty() {
            return Ok(Step::Next);
        }
        let most = if request.queries.is_empty() { MAX_UNASKED_SNAPSHOTS } else { usize::MAX };
        let snapshots = self.exports.snapshots(request.export, most);
        for snapshot in snapshots.iter().filter(|s| all || named.contains(&s.as_str())) {
            put(&format!("{CHANGED_SINCE}{snapshot}"));
        }
        Ok(Step::Next)
    }

    fn set_meta_context(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Step, OptionError> {
        self.selected = None; // replaced even when this fails
        let request = self.meta_request(data)?;
        let mut contexts = Vec::new();
        let mut put = |id: u32, name: &str| {
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), name.as_bytes()];
            put_option_reply(out, opt::SET_META_CONTEXT, rep::META_CONTEXT, &parts);
        };
        if request.selects_allocation() {
            put(ALLOCATION_ID, BASE_ALLOCATION);
            contexts.push(Context::Allocation);
        }
        if request.selects_damage() {
            put(DAMAGED_ID, DAMAGED);
            contexts.push(Context::Damaged);
        }
        let mut id = DAMAGED_ID;
        for snapshot in request.compared().into_iter().take(MAX_COMPARED) {
            // The server ignores a past state that it can't compare with, like any unknown context.
            if let Ok(changes) = self.exports.changed_since(request.export, snapshot) {
                id += 1;
                put(id, &format!("{CHANGED_SINCE}{snapshot}"));
                contexts.push(Context::Changes(id, changes));
            }
        }
        self.selected = Some((request.export.to_owned(), contexts));
        Ok(Step::Next)
    }
}
