//! The login phase: whatever text comes, in whatever stage, with and without CHAP, each request
//! gets one answer with well-formed text of bounded length, and nobody gets in without proof.
#![no_main]

use hindcast_fuzz::initiator::{Daemon, NAME, TARGET, daemon, encode, to_text};
use hindcast_fuzz::mem::MemDevice;
use hindcast_fuzz::serve_iscsi;
use hindcast_target::iscsi::pdu::{Bhs, Digests, opcode};
use hindcast_target::iscsi::{AuthPolicy, ChapUser, IscsiConfig, Secret, text};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

fn with(auth: AuthPolicy) -> Arc<Daemon> {
    let (daemon, _) = daemon(&Arc::new(MemDevice::new(1 << 20)));
    *daemon.auth.lock() = auth;
    daemon
}

static OPEN: LazyLock<Arc<Daemon>> = LazyLock::new(|| with(AuthPolicy::None));
static CLOSED: LazyLock<Arc<Daemon>> = LazyLock::new(|| {
    let user = |name: &str, secret: &str| ChapUser { name: name.into(), secret: Secret::new(secret) };
    with(AuthPolicy::Chap { users: vec![user("u", "a secret")], mutual: Some(user("t", "another")) })
});

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else {
        return;
    };
    let pairs = text::parse(bytes);
    let _ = (
        text::parse(bytes).is_ok(),
        std::str::from_utf8(bytes).map(|t| {
            (
                text::number(t),
                text::boolean(t),
                text::is_name(t),
                text::binary(t, 64).map(|b| assert!(b.len() <= 64)),
            )
        }),
    );
    if let Ok(pairs) = pairs {
        assert!(pairs.iter().all(|(k, v)| k.len() <= text::MAX_KEY && v.len() <= text::MAX_VALUE));
    }
    let chap = mode & 1 != 0;
    let mut input = Vec::new();
    // Each piece is a request: a byte of flags, then text; the first one may say who it is, to come
    // further.
    for (n, piece) in bytes.split(|b| *b == 1).take(16).enumerate() {
        let (flags, rest) = piece.split_first().map_or((0x87, &[][..]), |(flags, rest)| (*flags, rest));
        let mut body = Vec::new();
        if n == 0 && mode & 2 != 0 {
            body = to_text(&[("InitiatorName", NAME), ("TargetName", TARGET)]);
        }
        body.extend_from_slice(rest);
        body.truncate(9000);
        let mut bhs = Bhs::new(opcode::LOGIN | 0x40, flags);
        bhs.set_data_len(body.len());
        input.push(encode(&bhs, &body, Digests::default()));
    }
    let requests = input.len();
    let daemon = if chap { CLOSED.clone() } else { OPEN.clone() };
    let output = serve_iscsi(&IscsiConfig::default(), daemon, input);
    let (mut at, mut answers) = (0, 0);
    while let Some(bhs) = Bhs::parse(&output[at..]) {
        let layout = bhs.layout(Digests::default());
        let data = &output[at + layout.data_at..at + layout.data_at + layout.data_len];
        if bhs.opcode() != opcode::LOGIN_RESPONSE {
            break; // it got in, and what it sends now is nonsense
        }
        answers += 1;
        assert!(data.len() <= 8192 && text::parse(data).is_ok());
        let in_full_feature = bhs.u16(36) == 0 && bhs.u8(1) & 0x83 == 0x83;
        assert!(!(chap && in_full_feature), "nobody can guess the secret");
        assert!(bhs.u16(36) == 0 || at + layout.total == output.len(), "nothing follows a refusal");
        at += layout.total;
    }
    assert!(answers <= requests);
});
