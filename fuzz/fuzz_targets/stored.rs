//! See `sapwood::fuzzing::stored`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::stored(input));
