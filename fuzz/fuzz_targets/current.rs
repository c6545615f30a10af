//! See `sapwood::fuzzing::current`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::current(input));
