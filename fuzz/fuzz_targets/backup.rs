//! See `sapwood::fuzzing::backup`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::backup(input));
