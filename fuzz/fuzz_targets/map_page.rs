//! See `hindcast_engine::fuzzing::map_page`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hindcast_engine::fuzzing::map_page(data));
