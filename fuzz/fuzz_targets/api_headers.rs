//! The headers of a request by which the admin API knows its caller, and the place at which a
//! stream of events goes on: whatever they say, what is read is a part of them.
#![no_main]

use hindcast_server::fuzzing::{events_after, headers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.split(|b| *b == b'\n');
    let (event, authorization) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let cookies: Vec<&[u8]> = parts.take(8).collect();
    let found = headers(&cookies, authorization, event);
    for (name, secret) in [("hindcast-8440", &found.plain), ("__Host-hindcast-8440", &found.tls)] {
        let Some(secret) = secret else { continue };
        assert!(!secret.contains(';'));
        let pair = format!("{name}={secret}");
        let has = |cookie: &&[u8]| cookie.windows(pair.len()).any(|part| part == pair.as_bytes());
        assert!(cookies.iter().any(has), "{pair:?} is in no header");
    }
    if let Some(token) = &found.token {
        assert_eq!(token, token.trim());
        assert!(authorization[..6].eq_ignore_ascii_case(b"bearer"));
        assert!(authorization.ends_with(token.as_bytes()) || token.len() < authorization.len());
    }
    if let Some(number) = found.event {
        let (events, gap) = events_after(number);
        assert_eq!((events, gap), (0, number > 0));
    }
});
