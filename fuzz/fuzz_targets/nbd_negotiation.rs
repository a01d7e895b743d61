//! The handshake: whatever a client sends, in whatever pieces, the answer is well-formed, bounded,
//! and the same.
#![no_main]

use hindcast_fuzz::after_option_reply;
use hindcast_fuzz::mem::{MemDevice, MemExports};
use hindcast_target::nbd::options::{Negotiator, Policy, Step};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

static EXPORTS: LazyLock<Arc<MemExports>> =
    LazyLock::new(|| MemExports::one("vol", Arc::new(MemDevice::new(1 << 20))));

/// The first byte chooses the policy and the piece length; the rest is what the client sends.
fn run(policy: Policy, bytes: &[u8], piece: usize) -> (Vec<u8>, u8) {
    let mut negotiator = Negotiator::new(&**EXPORTS, policy);
    let (mut out, mut held) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        held.extend_from_slice(piece);
        loop {
            let (taken, step) = negotiator.step(&held, &mut out);
            assert!(taken <= held.len());
            let progress = taken > 0;
            held.drain(..taken);
            match step {
                Step::Next => assert!(progress, "a step without progress would never end"),
                // Of a list that is put out in parts the last ends it.
                Step::Part => {}
                Step::More => break,
                // As if the handshake had worked; what follows is what comes over TLS.
                Step::StartTls => negotiator.secured(&**EXPORTS),
                Step::Transmit(negotiated) => return (out, 1 + u8::from(negotiated.structured)),
                Step::Close => return (out, 0),
            }
        }
    }
    (out, 3)
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else {
        return;
    };
    let policy = Policy { tls_available: mode & 1 != 0, tls_required: mode & 3 == 3, max_request: 32 << 20 };
    let whole = run(policy, bytes, bytes.len().max(1));
    let pieces = run(policy, bytes, 1 + usize::from(mode >> 2));
    assert_eq!(whole, pieces);

    // Unless the session went on to the transmission phase, which may have begun with raw data, the
    // answer is option replies from beginning to end.
    let mut rest = &whole.0[..];
    while matches!(whole.1, 0 | 3) && !rest.is_empty() {
        rest = after_option_reply(rest).expect("an option reply");
    }
});
