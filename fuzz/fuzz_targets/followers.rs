//! See `sapwood::fuzzing::followers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::followers(input));
