//! See `sapwood::fuzzing::keys`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::keys(input));
