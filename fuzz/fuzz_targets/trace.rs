//! See `hindcast_engine::fuzzing::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hindcast_engine::fuzzing::trace(data));
