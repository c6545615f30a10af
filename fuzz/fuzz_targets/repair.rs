//! See `sapwood::fuzzing::repaired`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::repaired(input));
