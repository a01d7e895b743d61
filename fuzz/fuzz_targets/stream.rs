//! See `hindcast_engine::fuzzing::stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hindcast_engine::fuzzing::stream(data));
