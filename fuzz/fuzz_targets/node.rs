//! See `sapwood::fuzzing::node`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::node(input));
