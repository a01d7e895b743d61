//! See `hindcast_engine::fuzzing::journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hindcast_engine::fuzzing::journal(data));
