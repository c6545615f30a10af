//! See `sapwood::fuzzing::opened`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sapwood::fuzzing::opened(input));
