//! See `sapwood::fuzzing::wal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::wal(input));
