//! Texts in requests to the admin API: moments, sizes, addresses, places and patterns. What is
//! accepted is written again as a text that means the same.
#![no_main]

use hindcast_api::{Endpoint, Moment, Size};
use hindcast_server::fuzzing::{address, covers, is_place};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(moment) = text.parse::<Moment>() {
        let shown = moment.to_string();
        assert_eq!(shown.parse::<Moment>().as_ref(), Ok(&moment), "{text:?} became {shown:?}");
    }
    if let Ok(size) = text.parse::<Size>() {
        let shown = size.0.to_string();
        assert_eq!(shown.parse::<Size>().map(|size| size.0), Ok(size.0), "{text:?}");
    }
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        let shown = endpoint.to_string();
        assert_eq!(shown.parse::<Endpoint>().as_ref(), Ok(&endpoint), "{text:?} became {shown:?}");
        let _ = endpoint.is_private();
    }
    if let Some(shown) = address(text) {
        assert_eq!(address(&shown).as_ref(), Some(&shown), "{text:?}");
    }
    assert!(!(is_place(text) && text.contains(['/', '\0'])), "a place leads to another directory: {text:?}");
    let (pattern, name) = text.split_once(' ').unwrap_or((text, text));
    if let Some(covered) = covers(pattern, name) {
        assert!(!covered || !name.contains(['@', '/', ':', ' ']), "{name:?} is no name of a volume");
        assert!(pattern.contains('*') || covered == (pattern == name), "{pattern:?} {name:?}");
    }
});
