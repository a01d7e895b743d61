//! See `hindcast_engine::fuzzing::cdp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hindcast_engine::fuzzing::cdp(data));
