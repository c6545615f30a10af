//! See `sapwood::fuzzing::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::manifest(input));
